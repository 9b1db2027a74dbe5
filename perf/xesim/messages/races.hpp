// The race detector: two accesses to the same byte, at least one of them a plain write, that no
// barrier orders.
//
// Threads of a group are ordered by vector clocks (FastTrack: Flanagan and Freund, PLDI 2009):
// clock[t] of a thread is the last time of thread t that it knows of; barriers join clocks.
// Different groups of a launch are never ordered, except that a group which did a global atomic
// that returns a value is taken to have synchronised with everybody (split-K reductions, "last
// group done" counters): from then on its accesses are only checked against its own group. Atomics
// race with plain writes only: polling a flag that another group sets by an atomic is a correct
// program.
//
// One word stands for four bytes with a mask of those touched, and the newest access replaces an
// older one of other bytes: some races are missed, none is invented.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "machine/thread.hpp"
#include "messages/lines.hpp"

namespace xesim {

enum class Access : uint8_t { kRead, kWrite, kAtomic };

// Which of the four bytes of granule `granule` lie in [offset, offset + bytes).
inline uint32_t granule_mask(uint64_t granule, uint64_t offset, uint64_t bytes) {
  const uint64_t start = granule * kGranule;
  uint32_t mask = 0xf;
  if (offset > start) mask &= 0xfu << (offset - start);
  if (offset + bytes < start + kGranule) mask &= 0xfu >> (start + kGranule - offset - bytes);
  return mask & 0xf;
}

// The thread's own time. Times start at 1: 0 stands for "never heard of".
uint32_t own_time(Thread& thread);

// Unique id of the first thread of the thread's group.
inline uint64_t group_thread_id(const Thread& thread) {
  const Launch& launch = *thread.launch;
  return launch.first_thread_id +
         thread.group->linear * static_cast<uint64_t>(launch.threads_per_group);
}
// From now on the group knows what other groups did.
inline void acquire(Thread& thread) { thread.group->acquired = group_thread_id(thread) + 1; }
inline bool has_acquired(const Thread& thread) {
  return thread.group->acquired == group_thread_id(thread) + 1;
}

// Global memory, for the accesses of one message. Word: [63:32] unique thread id, [31:8] its time,
// [7:4] bytes, bit 3 atomic, bit 2 write, bit 1 read by several groups (then id and time say
// nothing but the launch), bit 0 set. Words of earlier launches have smaller ids and count as
// untouched.
class GlobalRaces {
 public:
  explicit GlobalRaces(Thread& thread);

  void access(Allocation& allocation, uint64_t offset, uint64_t bytes, Access access) {
    uint64_t* words = last_access(allocation);
    const uint64_t mine = own_ | flags_of(access);
    // Reads of what several groups have read change nothing. No word is all ones.
    const uint64_t shared = access == Access::kRead ? shared_ | kAllBytes : ~uint64_t{0};
    uint64_t g = offset / kGranule;
    const uint64_t last = (offset + bytes - 1) / kGranule;
    if ((offset | bytes) % kGranule == 0) {
      // Most words are those of an earlier access of the same kind: four at a time.
      const __m256i own4 = _mm256_set1_epi64x(static_cast<int64_t>(mine | kAllBytes));
      const __m256i shared4 = _mm256_set1_epi64x(static_cast<int64_t>(shared));
      for (; g + 4 <= last + 1; g += 4) {
        const auto old4 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + g));
        const auto known =
            _mm256_or_si256(_mm256_cmpeq_epi64(old4, own4), _mm256_cmpeq_epi64(old4, shared4));
        if (_mm256_movemask_epi8(known) == -1) continue;
        for (uint64_t i = g; i < g + 4; ++i) {
          update(words[i], mine | kAllBytes, shared, allocation.address + i * kGranule);
        }
      }
    }
    for (; g <= last; ++g) {
      update(words[g], mine | uint64_t{granule_mask(g, offset, bytes)} << 4, shared,
             allocation.address + g * kGranule);
    }
  }

 private:
  static constexpr uint64_t kSet = 1, kShared = 2, kWrite = 4, kAtomic = 8, kAllBytes = 0xf0;
  static uint64_t flags_of(Access access) {
    if (access == Access::kRead) return kSet;
    return access == Access::kWrite ? kSet | kWrite : kSet | kWrite | kAtomic;
  }
  void update(uint64_t& word, uint64_t mine, uint64_t shared, uint64_t address) {
    const uint64_t old = __atomic_load_n(&word, __ATOMIC_RELAXED);
    if (old == mine || old == shared) return;
    // Two host threads may update at once; a lost update only misses a race.
    __atomic_store_n(&word, old < floor_ ? mine : merge(old, mine, address), __ATOMIC_RELAXED);
  }
  uint64_t merge(uint64_t old, uint64_t mine, uint64_t address);
  [[noreturn]] void report(uint64_t old, uint64_t mine, uint64_t address) const;

  Thread& thread_;
  uint64_t floor_, shared_, own_;
  uint64_t group_first_, group_end_;  // ids of the own group's threads
};

// SLM: the same for the group's threads. Two words per granule: last write, and the last two
// readers.
class SlmRaces {
 public:
  explicit SlmRaces(Thread& thread);
  void access(uint64_t offset, uint64_t bytes, Access access);

 private:
  bool ordered_before(uint32_t stamp) const;
  Thread& thread_;
  uint32_t me_ = 0;  // 0: not checked
};

}  // namespace xesim
