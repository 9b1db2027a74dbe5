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

MemoryAccess::MemoryAccess(const Message& message, Traffic traffic, Access access)
    : message_(message),
      thread_(message.thread),
      space_(message.space),
      traffic_(traffic),
      access_(access),
      returns_(message.has_dst),
      base_(message.base),
      local_(local_of(message.thread, message.space)) {
  Worker& worker = *thread_.worker;
  const uint64_t version = Memory::instance().version();
  if (worker.memory_version != version) {
    worker.last_found = worker.last_found2 = nullptr;
    worker.memory_version = version;
  }
  if (space_ == Space::kSlm) {
    const uint32_t bytes = thread_.launch->slm_bytes;
    if (local_->data.size() < bytes) local_->data.resize(bytes);
    if (thread_.track && local_->defined.size() < bytes) local_->defined.resize(bytes);
  }
}

Allocation* MemoryAccess::find(uint64_t address, uint64_t bytes) {
  Worker& worker = *thread_.worker;
  Allocation* a = worker.last_found2;
  if (a == nullptr || bytes > a->bytes || address - a->address > a->bytes - bytes) {
    a = Memory::instance().find(address, bytes);
    if (a == nullptr) {
      fail("%s of %u bytes%s at 0x%llx: the address %s", verb(access_),
           static_cast<unsigned>(bytes), by_lane().c_str(),
           static_cast<unsigned long long>(address),
           Memory::instance().explain(address, bytes).c_str());
    }
  }
  worker.last_found2 = worker.last_found;
  worker.last_found = a;
  return a;
}

uint8_t* MemoryAccess::reach_local(uint64_t address, uint32_t bytes, const uint8_t* value) {
  const Launch& launch = *thread_.launch;
  const auto shown = static_cast<unsigned long long>(address);
  if (space_ == Space::kSlm) {
    address &= kSlmAddressMask;
    if (bytes > launch.slm_bytes || address > launch.slm_bytes - bytes) {
      fail("%s of %u bytes%s at 0x%llx of SLM, of which the group has %u bytes", verb(access_),
           bytes, by_lane().c_str(), static_cast<unsigned long long>(address), launch.slm_bytes);
    }
    uint8_t* memory = local_->data.data() + address;
    // A write of what is there already harms nobody; compilers let all threads store the same vote.
    const bool changes =
        value == nullptr || std::memcmp(memory, value, bytes) != 0 || !defined(memory, bytes);
    return add({address, memory, nullptr, bytes, changes});
  }
  if (space_ == Space::kScratch) {
    address &= 0xffffffff;  // 32-bit offsets wrap
    const uint64_t bias = launch.isa->xe2 ? kXe2ScratchBias : 0;
    if (address + bytes > bias + kScratchLimit) {
      fail("%s of %u bytes%s at 0x%llx of the thread's scratch space, which ends at 0x%llx",
           verb(access_), bytes, by_lane().c_str(), shown,
           static_cast<unsigned long long>(bias + kScratchLimit));
    }
    if (address + bytes > local_->data.size()) {
      // All that it can be is reserved at once: it does not move while it grows.
      const auto grow = [&](std::vector<uint8_t>& memory) {
        memory.reserve(bias + kScratchLimit);
        memory.resize((address + bytes + 4095) / 4096 * 4096);
      };
      grow(local_->data);
      if (thread_.track) grow(local_->defined);
    }
    return add({address, local_->data.data() + address, nullptr, bytes, true});
  }
  // The indirect data: shared by all host threads, never written.
  auto& payload = const_cast<std::vector<uint8_t>&>(launch.indirect_data);
  const uint64_t offset = address - launch.indirect_base;
  if (access_ != Access::kRead) fail("%s at 0x%llx of the indirect data", verb(access_), shown);
  if (bytes > payload.size() || offset > payload.size() - bytes) {
    fail("read of %u bytes at 0x%llx: the indirect data is 0x%llx..0x%llx", bytes, shown,
         static_cast<unsigned long long>(launch.indirect_base),
         static_cast<unsigned long long>(launch.indirect_base + payload.size()));
  }
  return add({address, payload.data() + offset, nullptr, bytes, true});
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

void MemoryAccess::load(const Piece& piece, uint32_t grf_byte) {
  std::memcpy(thread_.grf + grf_byte, piece.memory, piece.bytes);
  if (carries_defined()) {
    carry_to_registers(piece.memory, piece.bytes, grf_byte);
  } else {
    thread_.define(grf_byte, piece.bytes);
  }
}

void MemoryAccess::store(const Piece& piece, uint32_t grf_byte) {
  std::memcpy(piece.memory, thread_.grf + grf_byte, piece.bytes);
  if (carries_defined()) carry_from_registers(piece.memory, piece.bytes, grf_byte);
}

void MemoryAccess::run_block(uint64_t address, uint32_t bytes) {
  const uint32_t data = message_.data;
  switch (access_) {
    case Access::kPrefetch:
      prefetch(address, bytes);
      return tell();
    case Access::kRead:
      require_registers(message_.dst, bytes);
      reach(address, bytes);
      load(pieces_[0], message_.dst);
      return tell();
    default:
      message_.require_data(bytes);
      // What goes to global memory must be defined.
      if (local_ == nullptr) thread_.require_defined(data, bytes, "src1 (data)");
      reach(address, bytes, thread_.grf + data);
      tell();
      return store(pieces_[0], data);
  }
}

}  // namespace xesim
