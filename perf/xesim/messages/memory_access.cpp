#include "messages/memory_access.hpp"

#include <algorithm>

namespace xesim {
namespace {

// Largest scratch space of a thread on these devices.
constexpr uint64_t kScratchLimit = 256 << 10;
// Xe2 code adds this to every scratch offset so that negative immediates stay in range.
constexpr uint64_t kXe2ScratchBias = 0x10000;
// Code marks SLM pointers that became generic pointers by bit 28; the hardware ignores it.
constexpr uint64_t kSlmAddressMask = 0x0fffffff;

const char* verb(Access access) {
  if (access == Access::kRead) return "read";
  return access == Access::kWrite ? "write" : "atomic operation";
}

LocalMemory* local_of(Thread& thread, Space space) {
  if (space == Space::kSlm) return &thread.group->slm;
  return space == Space::kScratch ? &thread.scratch : nullptr;
}

}  // namespace

MemoryAccess::MemoryAccess(Thread& thread, Space space, uint64_t base, Traffic traffic)
    : thread_(thread),
      space_(space),
      traffic_(traffic),
      check_global_races_(space == Space::kGlobal && thread.launch->checks.global_races),
      base_(base),
      local_(local_of(thread, space)),
      races_(thread) {
  Worker& worker = *thread.worker;
  const uint64_t version = Memory::instance().version();
  if (worker.memory_version != version) {
    worker.last_found = worker.last_found2 = nullptr;
    worker.memory_version = version;
  }
  if (space == Space::kSlm) {
    if (thread.launch->checks.slm_races) slm_races_.emplace(thread);
    const uint32_t bytes = thread.launch->slm_bytes;
    if (local_->data.size() < bytes) local_->data.resize(bytes);
    if (thread.track && local_->defined.size() < bytes) local_->defined.resize(bytes);
  }
}

MemoryAccess::~MemoryAccess() {
  if (space_ == Space::kPayload) return;  // the launch's arguments are not the kernel's traffic
  MessageCounts& counts = thread_.worker->counts;
  switch (traffic_) {
    case Traffic::kGather:
      counts.gather_read += read_;
      counts.scatter_written += written_;
      break;
    case Traffic::kBlock:
      counts.block_read += read_;
      counts.block_written += written_;
      break;
    case Traffic::kBlock2d:
      counts.block2d_read += read_;
      counts.block2d_written += written_;
      break;
    case Traffic::kAtomic:
      counts.atomic_bytes += std::max(read_, written_);
      break;
  }
  if (space_ == Space::kGlobal) {
    counts.global_read += read_;
    counts.global_written += written_;
  } else if (space_ == Space::kSlm) {
    counts.slm_read += read_;
    counts.slm_written += written_;
  } else {
    counts.scratch_read += read_;
    counts.scratch_written += written_;
  }
}

Allocation* MemoryAccess::find(uint64_t address, uint64_t bytes, Access access) {
  Worker& worker = *thread_.worker;
  Allocation* a = worker.last_found2;
  if (a == nullptr || bytes > a->bytes || address - a->address > a->bytes - bytes) {
    a = Memory::instance().find(address, bytes);
    if (a == nullptr) {
      fail("%s of %u bytes%s at 0x%llx: the address %s", verb(access), static_cast<unsigned>(bytes),
           by_lane().c_str(), static_cast<unsigned long long>(address),
           Memory::instance().explain(address, bytes).c_str());
    }
  }
  worker.last_found2 = worker.last_found;
  worker.last_found = a;
  return a;
}

uint8_t* MemoryAccess::reach_local(uint64_t address, uint32_t bytes, Access access,
                                   const uint8_t* value) {
  const Launch& launch = *thread_.launch;
  const auto shown = static_cast<unsigned long long>(address);
  if (space_ == Space::kSlm) {
    address &= kSlmAddressMask;
    if (bytes > launch.slm_bytes || address > launch.slm_bytes - bytes) {
      fail("%s of %u bytes%s at 0x%llx of SLM, of which the group has %u bytes", verb(access),
           bytes, by_lane().c_str(), static_cast<unsigned long long>(address), launch.slm_bytes);
    }
    uint8_t* memory = local_->data.data() + address;
    // A write of what is there already harms nobody; compilers let all threads store the same vote.
    const bool changes =
        value == nullptr || std::memcmp(memory, value, bytes) != 0 || !defined(memory, bytes);
    if (slm_races_ && changes) slm_races_->access(address, bytes, access);
    return memory;
  }
  if (space_ == Space::kScratch) {
    address &= 0xffffffff;  // 32-bit offsets wrap
    const uint64_t bias = launch.isa->xe2 ? kXe2ScratchBias : 0;
    if (address + bytes > bias + kScratchLimit) {
      fail("%s of %u bytes%s at 0x%llx of the thread's scratch space, which ends at 0x%llx",
           verb(access), bytes, by_lane().c_str(), shown,
           static_cast<unsigned long long>(bias + kScratchLimit));
    }
    if (address + bytes > local_->data.size()) {
      const uint64_t grown =
          std::max((address + bytes + 4095) / 4096 * 4096,
                   std::min<uint64_t>(2 * local_->data.size(), bias + kScratchLimit));
      local_->data.resize(grown);
      if (thread_.track) local_->defined.resize(grown);
    }
    return local_->data.data() + address;
  }
  // The indirect data: shared by all host threads, never written.
  auto& payload = const_cast<std::vector<uint8_t>&>(launch.indirect_data);
  const uint64_t offset = address - launch.indirect_base;
  if (access != Access::kRead) fail("%s at 0x%llx of the indirect data", verb(access), shown);
  if (bytes > payload.size() || offset > payload.size() - bytes) {
    fail("read of %u bytes at 0x%llx: the indirect data is 0x%llx..0x%llx", bytes, shown,
         static_cast<unsigned long long>(launch.indirect_base),
         static_cast<unsigned long long>(launch.indirect_base + payload.size()));
  }
  return payload.data() + offset;
}

void MemoryAccess::carry_to_registers(const uint8_t* memory, uint32_t bytes, uint32_t grf_byte) {
  const uint8_t* flags = local_->defined.data() + (memory - local_->data.data());
  if (std::memchr(flags, 0, bytes) == nullptr) return thread_.define(grf_byte, bytes);
  for (uint32_t i = 0; i < bytes; ++i) thread_.define(grf_byte + i, 1, flags[i] != 0);
}

void MemoryAccess::carry_from_registers(uint8_t* memory, uint32_t bytes, uint32_t grf_byte) {
  uint8_t* flags = local_->defined.data() + (memory - local_->data.data());
  if (thread_.defined(grf_byte, bytes)) {
    std::memset(flags, 1, bytes);
    return;
  }
  for (uint32_t i = 0; i < bytes; ++i) flags[i] = thread_.defined(grf_byte + i, 1);
}

bool MemoryAccess::defined(const uint8_t* memory, uint32_t bytes) const {
  if (!carries_defined()) return true;
  return std::memchr(local_->defined.data() + (memory - local_->data.data()), 0, bytes) == nullptr;
}

void MemoryAccess::define(uint8_t* memory, uint32_t bytes) {
  if (carries_defined()) {
    std::memset(local_->defined.data() + (memory - local_->data.data()), 1, bytes);
  }
}

void MemoryAccess::load(uint64_t address, uint32_t bytes, uint32_t grf_byte) {
  const uint8_t* memory = reach(address, bytes, Access::kRead);
  std::memcpy(thread_.grf + grf_byte, memory, bytes);
  if (carries_defined()) {
    carry_to_registers(memory, bytes, grf_byte);
  } else {
    thread_.define(grf_byte, bytes);
  }
}

void MemoryAccess::store(uint64_t address, uint32_t bytes, uint32_t grf_byte) {
  if (local_ == nullptr) thread_.require_defined(grf_byte, bytes, "src1 (data)");
  uint8_t* memory = reach(address, bytes, Access::kWrite, thread_.grf + grf_byte);
  std::memcpy(memory, thread_.grf + grf_byte, bytes);
  if (carries_defined()) carry_from_registers(memory, bytes, grf_byte);
}

}  // namespace xesim
