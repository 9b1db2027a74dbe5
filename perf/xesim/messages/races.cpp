#include "messages/races.hpp"

#include <algorithm>
#include <cstdio>

namespace xesim {
namespace {

const char* verb(Access access, bool past) {
  if (access == Access::kRead) return past ? "read" : "reads";
  if (access == Access::kWrite) return past ? "wrote" : "writes";
  return past ? "changed atomically" : "changes atomically";
}

}  // namespace

uint32_t own_time(Thread& thread) {
  const auto number = static_cast<size_t>(thread.number);
  if (thread.clock.size() <= number) {
    thread.clock.resize(
        std::max<size_t>(number + 1, static_cast<size_t>(thread.launch->threads_per_group)));
  }
  if (thread.clock[number] == 0) thread.clock[number] = 1;
  return thread.clock[number];
}

GlobalRaces::GlobalRaces(Thread& thread) : thread_(thread) {
  const uint64_t first = thread.launch->first_thread_id;
  group_first_ = group_thread_id(thread);
  group_end_ = group_first_ + static_cast<uint64_t>(thread.launch->threads_per_group);
  floor_ = first << 32 | kSet;
  shared_ = first << 32 | kShared | kSet;
  own_ = (group_first_ + static_cast<uint64_t>(thread.number)) << 32 |
         uint64_t{own_time(thread) & 0xffffff} << 8;
}

uint64_t GlobalRaces::merge(uint64_t old, uint64_t mine, uint64_t address) {
  const bool overlap = (old & mine & kAllBytes) != 0;
  const bool write = (mine & kWrite) != 0, atomic = (mine & kAtomic) != 0;
  const bool old_write = (old & kWrite) != 0, old_atomic = (old & kAtomic) != 0;
  const uint64_t old_bytes = old & kAllBytes, bytes = mine & kAllBytes;
  const bool shared = (old & kShared) != 0;

  if (old >> 8 == mine >> 8 && !shared) {  // this thread, at the same time
    if (old_write && !write) return old;   // the write says more
    return ((old ^ mine) & ~kAllBytes) == 0 ? old | mine : mine;
  }
  const uint64_t id = old >> 32;
  const bool same_group = !shared && id >= group_first_ && id < group_end_;
  const bool conflict =
      overlap &&
      (atomic || old_atomic ? atomic != old_atomic && write && old_write : write || old_write);
  if (conflict) {
    bool ordered = has_acquired(thread_);
    if (same_group) {
      const auto number = static_cast<size_t>(id - group_first_);
      ordered = static_cast<int>(number) == thread_.number ||
                (number < thread_.clock.size() && thread_.clock[number] >= (old >> 8 & 0xffffff));
    }
    if (!ordered) report(old, mine, address);
  }
  if (write) return mine;
  if (old_write) {
    // Whoever sees an atomic's value may rely on what came before it: a flag that is polled.
    if (old_atomic && overlap && !same_group) acquire(thread_);
    return old;
  }
  if (shared) return (bytes & ~old_bytes) == 0 ? old : mine;
  if (!same_group && bytes == old_bytes) return shared_ | bytes;
  return mine;
}

void GlobalRaces::report(uint64_t old, uint64_t mine, uint64_t address) const {
  const auto access_of = [](uint64_t word) {
    if ((word & kAtomic) != 0) return Access::kAtomic;
    return (word & kWrite) != 0 ? Access::kWrite : Access::kRead;
  };
  const uint64_t id = old >> 32;
  const bool same_group = id >= group_first_ && id < group_end_;
  char other[96];
  if ((old & kShared) != 0) {
    std::snprintf(other, sizeof other, "several groups");
  } else if (same_group) {
    std::snprintf(other, sizeof other, "thread %d of the same group",
                  static_cast<int>(id - group_first_));
  } else {
    const auto threads = static_cast<uint64_t>(thread_.launch->threads_per_group);
    const uint64_t index = id - (floor_ >> 32);
    std::snprintf(other, sizeof other, "thread %d of group %llu", static_cast<int>(index % threads),
                  static_cast<unsigned long long>(index / threads));
  }
  fail(
      "data race in global memory at 0x%llx: thread %d of group %llu %s what %s %s in this "
      "launch; %s",
      static_cast<unsigned long long>(address), thread_.number,
      static_cast<unsigned long long>(thread_.group->linear), verb(access_of(mine), false), other,
      verb(access_of(old), true),
      same_group && (old & kShared) == 0 ? "no barrier orders them"
                                         : "nothing orders different groups");
}

namespace {

// SLM words. Write: [3:0] bytes, bit 4 atomic, [33:6] thread and time. Read: [3:0] bytes, [33:6]
// the newest reader, [61:34] the one before (another thread). A stamp is time | thread << 20, 0 =
// nobody.
constexpr uint32_t kStampTime = 0xfffff;
constexpr uint64_t kAtomicWrite = 16;
uint32_t first_stamp(uint64_t word) { return static_cast<uint32_t>(word >> 6 & 0xfffffff); }
uint32_t second_stamp(uint64_t word) { return static_cast<uint32_t>(word >> 34 & 0xfffffff); }

[[noreturn]] void slm_race(const Thread& thread, uint64_t granule, uint32_t stamp, Access now,
                           Access then) {
  fail("data race in SLM at 0x%llx: thread %d %s what thread %u %s; no barrier orders them",
       static_cast<unsigned long long>(granule * kGranule), thread.number, verb(now, false),
       stamp >> 20, verb(then, true));
}

}  // namespace

SlmRaces::SlmRaces(Thread& thread) : thread_(thread) {
  const uint32_t time = own_time(thread);
  if (time > kStampTime || thread.number > 255) return;  // does not fit a stamp
  me_ = static_cast<uint32_t>(thread.number) << 20 | time;
  auto& words = thread.group->slm_access;
  const uint64_t needed = 2 * ((thread.launch->slm_bytes + kGranule - 1) / kGranule);
  if (words.size() < needed) words.resize(needed);
}

bool SlmRaces::ordered_before(uint32_t stamp) const {
  const uint32_t number = stamp >> 20;
  return stamp == 0 || static_cast<int>(number) == thread_.number ||
         (number < thread_.clock.size() && thread_.clock[number] >= (stamp & kStampTime));
}

void SlmRaces::access(uint64_t offset, uint64_t bytes, Access access) {
  const uint32_t me = me_;
  if (me == 0) return;
  uint64_t* words = thread_.group->slm_access.data();
  const bool atomic = access == Access::kAtomic;
  for (uint64_t g = offset / kGranule; g <= (offset + bytes - 1) / kGranule; ++g) {
    const uint64_t mask = granule_mask(g, offset, bytes);
    uint64_t& write = words[2 * g];
    uint64_t& read = words[2 * g + 1];
    const bool write_overlaps = (write & mask) != 0, was_atomic = (write & kAtomicWrite) != 0;
    if (access == Access::kRead) {
      if (write_overlaps && !was_atomic && !ordered_before(first_stamp(write))) {
        slm_race(thread_, g, first_stamp(write), access, Access::kWrite);
      }
      if (first_stamp(read) == me) {
        if ((mask & ~read) != 0) read &= 0x3ffffffff;  // the other reader did not touch these bytes
        read |= mask;
      } else {
        const bool other = first_stamp(read) >> 20 != me >> 20;
        const uint32_t before = other ? first_stamp(read) : second_stamp(read);
        const bool same_bytes = (read & 0xf) == mask;
        read = mask | uint64_t{me} << 6 | (same_bytes ? uint64_t{before} << 34 : 0);
      }
      continue;
    }
    if (write_overlaps && !(atomic && was_atomic) && !ordered_before(first_stamp(write))) {
      slm_race(thread_, g, first_stamp(write), access,
               was_atomic ? Access::kAtomic : Access::kWrite);
    }
    if (!atomic && (read & mask) != 0) {
      for (const uint32_t reader : {first_stamp(read), second_stamp(read)}) {
        if (!ordered_before(reader)) slm_race(thread_, g, reader, access, Access::kRead);
      }
    }
    write = mask | (atomic ? kAtomicWrite : 0) | uint64_t{me} << 6;
  }
}

}  // namespace xesim
