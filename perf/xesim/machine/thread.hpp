// The state of a running launch: hardware threads, their work-group, what all groups share.
//
// Definedness: with checks.uninitialised every byte of registers, SLM and scratch carries one bit
// (byte for memory) that says whether it ever got a defined value. Moves and arithmetic pass it on
// lane by lane; only a use that matters (an address, a branch, a descriptor, data stored to global
// memory) is a fault.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/fault.hpp"
#include "isa/inst.hpp"
#include "machine/barriers.hpp"
#include "machine/checks.hpp"
#include "machine/memory.hpp"
#include "machine/observer.hpp"

namespace xesim {

struct Group;
struct Launch;
struct Program;

// One bit per byte of a register file.
template <int kBytes>
class DefinedBits {
 public:
  void set_all() { std::memset(words_, 0xff, sizeof words_); }
  void clear_all() { std::memset(words_, 0, sizeof words_); }
  bool test(uint32_t byte, uint32_t count) const {
    for (; count != 0;) {
      const uint32_t in_word = byte % 64, n = std::min(count, 64 - in_word);
      const uint64_t mask = mask_of(in_word, n);
      if ((words_[byte / 64] & mask) != mask) return false;
      byte += n;
      count -= n;
    }
    return true;
  }
  void set(uint32_t byte, uint32_t count, bool defined) {
    for (; count != 0;) {
      const uint32_t in_word = byte % 64, n = std::min(count, 64 - in_word);
      const uint64_t mask = mask_of(in_word, n);
      if (defined)
        words_[byte / 64] |= mask;
      else
        words_[byte / 64] &= ~mask;
      byte += n;
      count -= n;
    }
  }

 private:
  static uint64_t mask_of(uint32_t first, uint32_t n) {
    return (n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1) << first;
  }
  uint64_t words_[kBytes / 64 + 2] = {};
};

// The lanes of an instruction of this width.
constexpr uint32_t all_lanes(int width) { return width >= 32 ? ~0u : (1u << width) - 1; }

constexpr int kGrfFileBytes = 256 * 64;
constexpr int kAccFileBytes = 16 * 64;

// What one host thread keeps while it runs groups; where several groups run at the same time, it
// has one for each.
struct Worker {
  size_t index = 0;
  std::vector<uint64_t> executed;    // how often each instruction of the program has run
  Allocation* last_found = nullptr;  // most recent hits of Memory::find, valid while version stays
  Allocation* last_found2 = nullptr;
  uint64_t memory_version = ~uint64_t{0};
};

enum class ThreadState : uint8_t { kReady, kWaiting, kEnded };

// Linear private memory (scratch) or the group's SLM, with its defined bytes.
struct LocalMemory {
  std::vector<uint8_t> data;
  std::vector<uint8_t> defined;  // 0 or 1 per byte; empty when not tracked
};

struct Thread {
  // Registers as linear bytes; a region may run over register boundaries.
  alignas(64) uint8_t grf[kGrfFileBytes + 128];
  alignas(64) uint8_t acc[kAccFileBytes + 128];
  alignas(
      16) __int128 wide_acc[32];  // the wide integer value behind acc0, per lane (mul, mach, macl)
  uint32_t flag[4];
  alignas(64) uint16_t a0[32];
  uint32_t cr0[4];
  uint32_t sr0[4];
  uint32_t dispatch_mask, execution_mask;  // sr0.2; enabled lanes
  std::array<uint32_t, 32> lane_ip;        // where a disabled lane waits (goto/join)
  DefinedBits<kGrfFileBytes> grf_defined;
  DefinedBits<kAccFileBytes> acc_defined;
  uint32_t flag_defined[4];  // one bit per flag bit
  uint32_t a0_defined;       // bit k: a0.k
  bool track = false;        // checks.uninitialised

  uint32_t ip = 0;
  ThreadState state = ThreadState::kReady;
  int waiting_barrier = -1;
  int number = 0;  // in the group
  Group* group = nullptr;
  Launch* launch = nullptr;
  Worker* worker = nullptr;
  const Inst* current = nullptr;  // the instruction that runs
  LocalMemory scratch;            // grows at the first use

  // Lanes of `inst` that execute: enabled (unless NoMask) and predicated. Bit i = lane i of
  // exec_size.
  uint32_t active_lanes(const Inst& inst) const;
  // Lanes whose predicate bit is defined; all if there is no predicate.
  uint32_t defined_predicate(const Inst& inst) const;

  bool defined(uint32_t byte, uint32_t count) const {
    return !track || grf_defined.test(byte, count);
  }
  void define(uint32_t byte, uint32_t count, bool is_defined = true) {
    if (track) grf_defined.set(byte, count, is_defined);
  }
  // Faults, naming the source operand of the current instruction, if some of these register bytes
  // are undefined.
  void require_defined(uint32_t byte, uint32_t count, const char* operand) const {
    if (!defined(byte, count)) undefined_register(byte, count, operand);
  }
  [[noreturn]] void undefined_register(uint32_t byte, uint32_t count, const char* operand) const;

  template <class T>
  T read(uint32_t byte) const {
    T value;
    std::memcpy(&value, grf + byte, sizeof value);
    return value;
  }
  template <class T>
  void write(uint32_t byte, T value) {
    std::memcpy(grf + byte, &value, sizeof value);
  }
};

struct Group {
  std::array<uint32_t, 3> id;
  uint64_t linear = 0;  // index in the launch
  uint32_t core = 0;    // on which it runs, where caches are counted
  LocalMemory slm;
  Barriers barriers;
  std::vector<std::unique_ptr<Thread>> threads;
};

struct Launch {
  const Isa* isa = nullptr;
  Checks checks;
  std::shared_ptr<const Program> program;
  std::string kernel;
  // Indirect data (the payload region that BTI 255 with a32 addresses reach).
  std::vector<uint8_t> indirect_data;
  uint64_t indirect_base = 0;  // address of its first byte in that space
  std::vector<std::pair<uint64_t, uint64_t>>
      surfaces;  // bindless handle (or BTI, low) -> base address
  uint32_t slm_bytes = 0;
  int threads_per_group = 1;
  std::atomic<bool> stop{false};  // another worker found a fault
  Observers observers;
};

}  // namespace xesim
