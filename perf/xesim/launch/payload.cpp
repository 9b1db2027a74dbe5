#include "launch/payload.hpp"

#include <immintrin.h>

#include <algorithm>

#include "launch/module.hpp"

namespace xesim {
namespace {

uint64_t align_up(uint64_t x, uint64_t alignment) {
  return (x + alignment - 1) / alignment * alignment;
}

// Handles of bindless surfaces: multiples of 64, as hardware's surface states have.
constexpr uint32_t kFirstSurface = 0x40 * 8, kConstSurface = 0x40 * 200,
                   kGlobalSurface = 0x40 * 201;

// One writer of the cross-thread block.
class CrossThread {
 public:
  CrossThread(const LaunchDesc& desc, const Kernel& kernel, Launch& launch, Payload& payload,
              int resident_threads)
      : desc_(desc),
        kernel_(kernel),
        launch_(launch),
        payload_(payload),
        resident_threads_(resident_threads) {
    uint32_t end = 0;
    for (const PayloadArg& arg : info().payload) end = std::max(end, arg.offset + arg.size);
    bytes_.assign(align_up(end, 32), 0);
    slm_top_ = info().slm_size;
    for (const PayloadArg& arg : info().payload) write(arg);
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  uint32_t slm_top() const { return slm_top_; }

 private:
  const KernelInfo& info() const { return kernel_.code.info; }

  void put(const PayloadArg& arg, const void* data, size_t available) {
    std::memcpy(bytes_.data() + arg.offset, data, std::min<size_t>(arg.size, available));
  }
  void put_u64(const PayloadArg& arg, uint64_t value) { put(arg, &value, sizeof value); }
  void put_sizes(const PayloadArg& arg, const std::array<uint32_t, 3>& sizes) {
    if (arg.size == 24) {
      const uint64_t wide[3] = {sizes[0], sizes[1], sizes[2]};
      put(arg, wide, sizeof wide);
    } else {
      put(arg, sizes.data(), 12);
    }
  }

  const std::vector<uint8_t>& argument(const PayloadArg& arg) const {
    if (arg.index < 0 || static_cast<size_t>(arg.index) >= desc_.arguments.size()) {
      fail("kernel %s: argument %d was not set", info().name.c_str(), arg.index);
    }
    return desc_.arguments[static_cast<size_t>(arg.index)];
  }
  uint64_t pointer(const PayloadArg& arg) const {
    const std::vector<uint8_t>& value = argument(arg);
    if (value.size() != 8) {
      fail("kernel %s: argument %d is a pointer of 8 bytes, got %zu bytes", info().name.c_str(),
           arg.index, value.size());
    }
    uint64_t address;
    std::memcpy(&address, value.data(), 8);
    return address;
  }

  void write_pointer(const PayloadArg& arg) {
    if (arg.mode == AddressMode::kSlm) {
      // The kernel adds slm_size itself where it has memory of its own: the value is relative to
      // what follows it.
      const uint32_t alignment = std::max(arg.slm_alignment, 1u);
      slm_arguments_ = static_cast<uint32_t>(align_up(slm_arguments_, alignment));
      put_u64(arg, slm_arguments_);
      const size_t index = static_cast<size_t>(arg.index);
      if (arg.index < 0 || index >= desc_.slm_bytes.size() || desc_.slm_bytes[index] > 1 << 20) {
        fail("kernel %s: argument %d is local memory and has no size", info().name.c_str(),
             arg.index);
      }
      slm_arguments_ += static_cast<uint32_t>(desc_.slm_bytes[index]);
      slm_top_ = info().slm_size + slm_arguments_;
      return;
    }
    const uint64_t address = pointer(arg);
    switch (arg.mode) {
      case AddressMode::kBindless: {
        const uint32_t handle = kFirstSurface + 0x40 * static_cast<uint32_t>(arg.index);
        launch_.surfaces.emplace_back(handle, address);
        put_u64(arg, handle);
        break;
      }
      case AddressMode::kStateful:
        for (const auto& [bti, index] : info().binding_table) {
          if (index == arg.index) launch_.surfaces.emplace_back(bti, address);
        }
        break;
      default:
        put_u64(arg, address);
    }
  }

  void write_value(const PayloadArg& arg) {
    const std::vector<uint8_t>& value = argument(arg);
    if (arg.source_offset > value.size() || arg.size > value.size() - arg.source_offset) {
      fail("kernel %s: argument %d has at least %u bytes, got %zu", info().name.c_str(), arg.index,
           arg.source_offset + arg.size, value.size());
    }
    put(arg, value.data() + arg.source_offset, arg.size);
  }

  void write_section(const PayloadArg& arg, const char* section, uint32_t handle) {
    const uint64_t address = kernel_.section_address(section);
    if (arg.mode == AddressMode::kBindless) {
      launch_.surfaces.emplace_back(handle, address);
      put_u64(arg, handle);
    } else {
      put_u64(arg, address);
    }
  }

  void write_private_base(const PayloadArg& arg) {
    const uint64_t per_thread =
        std::max<uint64_t>(std::max(info().private_bytes, info().scratch_bytes), 64) * 32;
    const uint64_t bytes = per_thread * static_cast<uint64_t>(resident_threads_ + 1);
    payload_.private_memory =
        Memory::instance().allocate(bytes, 4096, MemoryKind::kInternal, nullptr, false);
    put_u64(arg, payload_.private_memory->address);
  }

  void write(const PayloadArg& arg) {
    const std::array<uint32_t, 3>& local = desc_.local;
    switch (arg.type) {
      case ArgType::kPointer:
        return write_pointer(arg);
      case ArgType::kValue:
        return write_value(arg);
      case ArgType::kLocalSize:
      case ArgType::kEnqueuedLocalSize:
        return put_sizes(arg, local);
      case ArgType::kGroupCount:
        return put_sizes(arg, desc_.groups);
      case ArgType::kGlobalSize:
        return put_sizes(arg, {desc_.groups[0] * local[0], desc_.groups[1] * local[1],
                               desc_.groups[2] * local[2]});
      case ArgType::kGlobalOffset:
        return put_sizes(arg, desc_.offset);
      case ArgType::kWorkDimensions:
        return put_u64(arg, 3);
      case ArgType::kBufferOffset:
        return put_u64(arg, 0);
      case ArgType::kBufferSize: {
        const Allocation* a = Memory::instance().find(pointer(arg), 1);
        return put_u64(arg, a == nullptr ? 0 : a->address + a->bytes - pointer(arg));
      }
      case ArgType::kConstBase:
        return write_section(arg, "const", kConstSurface);
      case ArgType::kGlobalBase:
        return write_section(arg, "global", kGlobalSurface);
      case ArgType::kPrivateBase:
        return write_private_base(arg);
      case ArgType::kImplicitArgs:
      case ArgType::kPrintfBuffer:
      case ArgType::kUnusedPointer:
        return put_u64(arg, 0);
    }
  }

  const LaunchDesc& desc_;
  const Kernel& kernel_;
  Launch& launch_;
  Payload& payload_;
  int resident_threads_;
  std::vector<uint8_t> bytes_;
  uint32_t slm_arguments_ = 0, slm_top_ = 0;
};

// Local ids of the lanes of thread `number`, x fastest.
void write_local_ids(const KernelInfo& info, const std::array<uint32_t, 3>& local, int grf_bytes,
                     uint32_t number, uint8_t* block) {
  const auto put = [&](size_t byte, uint32_t value) {
    const uint16_t id = static_cast<uint16_t>(value);
    std::memcpy(block + byte, &id, 2);
  };
  const auto id = [&](uint32_t linear, uint32_t dimension) {
    return dimension == 0   ? linear % local[0]
           : dimension == 1 ? linear / local[0] % local[1]
                            : linear / local[0] / local[1];
  };
  if (info.packed_local_ids) {
    for (uint32_t d = 0; d < 3; ++d) put(2 * d, id(number, d));
    return;
  }
  const uint32_t stride =
      info.simd_size == 32 && grf_bytes == 32 ? 64 : static_cast<uint32_t>(grf_bytes);
  const uint32_t dimensions = std::min(3u, info.local_id_bytes / stride);
  for (uint32_t lane = 0; lane < static_cast<uint32_t>(info.simd_size); ++lane) {
    const uint32_t linear = number * static_cast<uint32_t>(info.simd_size) + lane;
    for (uint32_t d = 0; d < dimensions; ++d) put(d * stride + 2 * lane, id(linear, d));
  }
}

// The fields of sr0.0 from which compilers make the number of the resident thread; other bits are
// not read.
uint32_t hardware_thread(Family family, uint32_t resident) {
  const uint32_t fields = family == Family::kDg2   ? 0x3fff & ~(1u << 3 | 1u << 6)
                          : family == Family::kPvc ? 0x7fff & ~(1u << 3 | 1u << 6 | 1u << 7)
                                                   : 0x7fff & ~(1u << 3 | 1u << 7 | 1u << 10);
  return _pdep_u32(resident, fields);
}

}  // namespace

Payload::~Payload() {
  if (private_memory != nullptr) Memory::instance().release(private_memory->address);
}

std::unique_ptr<Payload> make_payload(const LaunchDesc& desc, const Kernel& kernel, Launch& launch,
                                      int resident_threads) {
  const KernelInfo& info = kernel.code.info;
  const uint32_t grf = static_cast<uint32_t>(launch.isa->grf_bytes);
  auto payload = std::make_unique<Payload>();
  const CrossThread cross(desc, kernel, launch, *payload, resident_threads);
  launch.slm_bytes = cross.slm_top();
  const uint32_t limit = launch.isa->family == Family::kDg2 ? 64 * 1024 : 128 * 1024;
  if (launch.slm_bytes > limit) {
    fail("kernel %s needs %u bytes of local memory, %s has %u a group", info.name.c_str(),
         launch.slm_bytes, launch.isa->name, limit);
  }
  // The first bytes of the cross-thread data may come in r1; memory holds the rest.
  const size_t in_register = std::min<size_t>(info.inline_data, cross.bytes().size());
  payload->inline_data.assign(cross.bytes().begin(),
                              cross.bytes().begin() + static_cast<ptrdiff_t>(in_register));
  payload->inline_data.resize(info.inline_data, 0);
  std::vector<uint8_t>& data = launch.indirect_data;
  data.assign(cross.bytes().begin() + static_cast<ptrdiff_t>(in_register), cross.bytes().end());
  const size_t cross_bytes = data.size();
  const size_t block = align_up(info.packed_local_ids ? grf : info.local_id_bytes, grf);
  const size_t threads = static_cast<size_t>(launch.threads_per_group);
  data.resize(cross_bytes + block * threads + 512,
              0);  // loads of whole registers may run past the end
  if (block != 0) {
    for (size_t t = 0; t < threads; ++t) {
      write_local_ids(info, desc.local, static_cast<int>(grf), static_cast<uint32_t>(t),
                      data.data() + cross_bytes + t * block);
    }
  }
  launch.indirect_base = kIndirectBase;
  return payload;
}

void start_thread(Thread& thread, const Kernel& kernel, const LaunchDesc& desc,
                  const Payload& payload, int resident) {
  const KernelInfo& info = kernel.code.info;
  const Launch& launch = *thread.launch;
  const Group& group = *thread.group;
  const uint32_t grf = static_cast<uint32_t>(launch.isa->grf_bytes);
  thread.track = launch.checks.uninitialised;
  if (thread.track) {  // what hardware leaves in registers is arbitrary: NaNs, so that a use shows
    std::memset(thread.grf, 0xff, static_cast<size_t>(info.grf_count) * grf);
    std::memset(thread.acc, 0xff, sizeof thread.acc);
  }
  std::memset(thread.flag, 0, sizeof thread.flag);
  std::memset(thread.a0, 0, sizeof thread.a0);
  std::memset(thread.cr0, 0, sizeof thread.cr0);
  std::memset(thread.sr0, 0, sizeof thread.sr0);
  thread.grf_defined.clear_all();
  thread.acc_defined.clear_all();
  std::memset(thread.flag_defined, 0, sizeof thread.flag_defined);
  thread.a0_defined = 0;
  thread.lane_ip.fill(~0u);

  uint32_t lanes = ~0u;
  if (info.simd_size > 1) {
    const uint32_t items = desc.local[0] * desc.local[1] * desc.local[2];
    const uint32_t first = static_cast<uint32_t>(thread.number * info.simd_size);
    const uint32_t count = std::min(items - first, static_cast<uint32_t>(info.simd_size));
    lanes = count >= 32 ? ~0u : (1u << count) - 1;
  }
  thread.dispatch_mask = thread.execution_mask = lanes;
  thread.sr0[0] = hardware_thread(launch.isa->family, static_cast<uint32_t>(resident));
  thread.sr0[2] = lanes;

  const uint32_t number = static_cast<uint32_t>(thread.number);
  const uint32_t count = static_cast<uint32_t>(launch.threads_per_group);
  const uint32_t r0[8] = {kIndirectBase, group.id[0], (number & 0xff) | count << 24, 0, 0,
                          0x400,  // scratch surface handle in [31:10]
                          group.id[1],   group.id[2]};
  std::memset(thread.grf, 0, grf);
  std::memcpy(thread.grf, r0, sizeof r0);
  thread.grf_defined.set(0, grf, true);
  if (!payload.inline_data.empty()) {
    std::memcpy(thread.grf + grf, payload.inline_data.data(), payload.inline_data.size());
    thread.grf_defined.set(grf, static_cast<uint32_t>(payload.inline_data.size()), true);
  }
  thread.ip = 0;
  thread.state = ThreadState::kReady;
  thread.waiting_barrier = -1;
  thread.current = nullptr;
  thread.scratch.data.clear();
  thread.scratch.defined.clear();
}

}  // namespace xesim
