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

#include <array>
#include <cstdint>
#include <vector>

#include "machine/observer.hpp"
#include "machine/thread.hpp"
#include "observe/shadow.hpp"

namespace xesim {

class Races : public Observer {
 public:
  // Words of global memory hold 32-bit thread ids: `threads` of the launch must be fewer.
  Races(const Checks& checks, uint64_t threads, size_t workers);
  void on_group(const Group& group) override;
  void on_message(const Thread& thread, const MessageEvent& event) override;
  void on_barrier(const Thread& thread, int id, BarrierStep step) override;

 private:
  using Clock = std::vector<uint32_t>;
  struct BarrierClocks {  // of the producers that arrived, and joined over all completed phases
    Clock arrived, completed;
  };
  struct alignas(64) GroupState {  // of the group that a worker runs
    uint64_t first = 0, end = 0;   // ids of its threads
    std::vector<Clock> clocks;     // per thread
    std::array<BarrierClocks, 32> barriers;
    bool acquired = false;      // it knows what other groups did
    std::vector<uint64_t> slm;  // two words per granule: last write, and the last two readers
  };

  void check_global(const Thread& thread, const MessageEvent& event);
  uint64_t merge(const Thread& thread, uint64_t old, uint64_t mine, uint64_t address);
  [[noreturn]] void report_global(const Thread& thread, uint64_t old, uint64_t mine,
                                  uint64_t address) const;
  void check_slm(const Thread& thread, const MessageEvent& event);

  const bool global_, slm_;
  Shadow last_access_;
  std::vector<GroupState> groups_;  // per worker
};

}  // namespace xesim
