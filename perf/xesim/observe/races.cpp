#include "observe/races.hpp"

#include <immintrin.h>

#include <algorithm>
#include <cstdio>

namespace xesim {
namespace {

constexpr uint64_t kGranule = 4;  // bytes of a word

const char* verb(Access access, bool past) {
  if (access == Access::kRead) return past ? "read" : "reads";
  if (access == Access::kWrite) return past ? "wrote" : "writes";
  return past ? "changed atomically" : "changes atomically";
}

// Which of the four bytes of granule `granule` lie in [offset, offset + bytes).
uint32_t granule_mask(uint64_t granule, uint64_t offset, uint64_t bytes) {
  const uint64_t start = granule * kGranule;
  uint32_t mask = 0xf;
  if (offset > start) mask &= 0xfu << (offset - start);
  if (offset + bytes < start + kGranule) mask &= 0xfu >> (start + kGranule - offset - bytes);
  return mask & 0xf;
}

void join(std::vector<uint32_t>& into, const std::vector<uint32_t>& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

// Words of global memory: [63:32] unique thread id, [31:8] its time, [7:4] bytes, bit 3 atomic, bit
// 2 write, bit 1 read by several groups (then id and time are 0), bit 0 set.
constexpr uint64_t kSet = 1, kShared = 2, kWrite = 4, kAtomic = 8, kAllBytes = 0xf0;

uint64_t flags_of(Access access) {
  if (access == Access::kRead) return kSet;
  return access == Access::kWrite ? kSet | kWrite : kSet | kWrite | kAtomic;
}
Access access_of(uint64_t word) {
  if ((word & kAtomic) != 0) return Access::kAtomic;
  return (word & kWrite) != 0 ? Access::kWrite : Access::kRead;
}

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

Races::Races(const Checks& checks, uint64_t threads, size_t workers)
    : global_(checks.global_races && threads < UINT32_MAX),
      slm_(checks.slm_races),
      last_access_(kGranule, workers),
      groups_(workers) {}

void Races::on_group(const Group& group) {
  const size_t threads = group.threads.size();
  GroupState& state = groups_[group.threads[0]->worker->index];
  state.first = 1 + group.linear * threads;
  state.end = state.first + threads;
  // Times start at 1: 0 stands for "never heard of".
  state.clocks.assign(threads, Clock(threads, 0));
  for (size_t i = 0; i < threads; ++i) state.clocks[i][i] = 1;
  state.barriers.fill({});
  state.acquired = false;
  state.slm.clear();
}

void Races::on_message(const Thread& thread, const MessageEvent& event) {
  if (event.access == Access::kPrefetch) return;
  if (global_ && event.space == Space::kGlobal) check_global(thread, event);
  if (slm_ && event.space == Space::kSlm) check_slm(thread, event);
}

void Races::on_barrier(const Thread& thread, int id, BarrierStep step) {
  GroupState& state = groups_[thread.worker->index];
  BarrierClocks& barrier = state.barriers[static_cast<size_t>(id)];
  const auto number = static_cast<size_t>(thread.number);
  Clock& clock = state.clocks[number];
  switch (step) {
    case BarrierStep::kSignal:
      join(barrier.arrived, clock);
      ++clock[number];  // what the thread does from here on is not ordered by this barrier
      break;
    case BarrierStep::kSignalConsumer:
      break;
    case BarrierStep::kComplete:
      join(barrier.completed, barrier.arrived);
      barrier.arrived.clear();
      break;
    case BarrierStep::kPass: {
      const uint32_t time = clock[number];
      join(clock, barrier.completed);
      clock[number] = time;
      break;
    }
  }
}

void Races::check_global(const Thread& thread, const MessageEvent& event) {
  GroupState& state = groups_[thread.worker->index];
  const auto number = static_cast<size_t>(thread.number);
  // Returning the old value is how a group learns what others have done.
  if (event.access == Access::kAtomic && event.returns) state.acquired = true;
  const uint64_t mine = (state.first + number) << 32 |
                        uint64_t{state.clocks[number][number] & 0xffffff} << 8 |
                        flags_of(event.access);
  // Reads of what several groups have read change nothing. No word is all ones.
  const uint64_t shared = event.access == Access::kRead ? kShared | kSet | kAllBytes : ~uint64_t{0};
  const auto update = [&](uint64_t& word, uint64_t now, uint64_t address) {
    const uint64_t old = __atomic_load_n(&word, __ATOMIC_RELAXED);
    if (old == now || old == shared) return;
    // Two host threads may update at once; a lost update only misses a race.
    __atomic_store_n(&word, old == 0 ? now : merge(thread, old, now, address), __ATOMIC_RELAXED);
  };
  const Allocation* allocation = nullptr;
  uint64_t* words = nullptr;
  for (const Piece& piece : event.pieces) {
    if (piece.allocation->kind == MemoryKind::kInternal) continue;
    if (piece.allocation != allocation) {
      allocation = piece.allocation;
      words = last_access_.of(*allocation, thread.worker->index);
    }
    const uint64_t offset = piece.address - allocation->address, bytes = piece.bytes;
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
          update(words[i], mine | kAllBytes, allocation->address + i * kGranule);
        }
      }
    }
    for (; g <= last; ++g) {
      update(words[g], mine | uint64_t{granule_mask(g, offset, bytes)} << 4,
             allocation->address + g * kGranule);
    }
  }
}

uint64_t Races::merge(const Thread& thread, uint64_t old, uint64_t mine, uint64_t address) {
  GroupState& state = groups_[thread.worker->index];
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
  const bool same_group = !shared && id >= state.first && id < state.end;
  const bool conflict =
      overlap &&
      (atomic || old_atomic ? atomic != old_atomic && write && old_write : write || old_write);
  if (conflict) {
    bool ordered = state.acquired;
    if (same_group) {
      const uint64_t number = id - state.first;
      ordered = static_cast<int>(number) == thread.number ||
                state.clocks[static_cast<size_t>(thread.number)][number] >= (old >> 8 & 0xffffff);
    }
    if (!ordered) report_global(thread, old, mine, address);
  }
  if (write) return mine;
  if (old_write) {
    // Whoever sees an atomic's value may rely on what came before it: a flag that is polled.
    if (old_atomic && overlap && !same_group) state.acquired = true;
    return old;
  }
  if (shared) return (bytes & ~old_bytes) == 0 ? old : mine;
  if (!same_group && bytes == old_bytes) return kShared | kSet | bytes;
  return mine;
}

void Races::report_global(const Thread& thread, uint64_t old, uint64_t mine,
                          uint64_t address) const {
  const GroupState& state = groups_[thread.worker->index];
  const uint64_t id = old >> 32;
  const bool several = (old & kShared) != 0;
  const bool same_group = !several && id >= state.first && id < state.end;
  char other[96];
  if (several) {
    std::snprintf(other, sizeof other, "several groups");
  } else if (same_group) {
    std::snprintf(other, sizeof other, "thread %d of the same group",
                  static_cast<int>(id - state.first));
  } else {
    const uint64_t threads = state.clocks.size();
    std::snprintf(other, sizeof other, "thread %d of group %llu",
                  static_cast<int>((id - 1) % threads),
                  static_cast<unsigned long long>((id - 1) / threads));
  }
  fail(
      "data race in global memory at 0x%llx: thread %d of group %llu %s what %s %s in this "
      "launch; %s",
      static_cast<unsigned long long>(address), thread.number,
      static_cast<unsigned long long>(thread.group->linear), verb(access_of(mine), false), other,
      verb(access_of(old), true),
      same_group ? "no barrier orders them" : "nothing orders different groups");
}

void Races::check_slm(const Thread& thread, const MessageEvent& event) {
  GroupState& state = groups_[thread.worker->index];
  const Clock& clock = state.clocks[static_cast<size_t>(thread.number)];
  const uint32_t time = clock[static_cast<size_t>(thread.number)];
  if (time > kStampTime || thread.number > 255) return;  // does not fit a stamp
  const uint32_t me = static_cast<uint32_t>(thread.number) << 20 | time;
  if (state.slm.empty()) {
    state.slm.resize(2 * ((thread.launch->slm_bytes + kGranule - 1) / kGranule));
  }
  const auto ordered_before = [&](uint32_t stamp) {
    const uint32_t number = stamp >> 20;
    return stamp == 0 || static_cast<int>(number) == thread.number ||
           clock[number] >= (stamp & kStampTime);
  };
  const Access access = event.access;
  const bool atomic = access == Access::kAtomic;
  for (const Piece& piece : event.pieces) {
    if (!piece.changes) continue;
    for (uint64_t g = piece.address / kGranule; g <= (piece.address + piece.bytes - 1) / kGranule;
         ++g) {
      const uint64_t mask = granule_mask(g, piece.address, piece.bytes);
      uint64_t& write = state.slm[2 * g];
      uint64_t& read = state.slm[2 * g + 1];
      const bool write_overlaps = (write & mask) != 0, was_atomic = (write & kAtomicWrite) != 0;
      if (access == Access::kRead) {
        if (write_overlaps && !was_atomic && !ordered_before(first_stamp(write))) {
          slm_race(thread, g, first_stamp(write), access, Access::kWrite);
        }
        if (first_stamp(read) == me) {
          if ((mask & ~read) != 0) read &= 0x3ffffffff;  // the other reader touched other bytes
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
        slm_race(thread, g, first_stamp(write), access,
                 was_atomic ? Access::kAtomic : Access::kWrite);
      }
      if (!atomic && (read & mask) != 0) {
        for (const uint32_t reader : {first_stamp(read), second_stamp(read)}) {
          if (!ordered_before(reader)) slm_race(thread, g, reader, access, Access::kRead);
        }
      }
      write = mask | (atomic ? kAtomicWrite : 0) | uint64_t{me} << 6;
    }
  }
}

}  // namespace xesim
