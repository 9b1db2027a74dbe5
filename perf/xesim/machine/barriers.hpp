// The barriers of a group: who has arrived, who waits, whom they wake.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace xesim {

struct Group;
struct Thread;

struct BarrierSignal {
  int id;
  bool produces, consumes;  // others wait for this thread; it will wait itself
  int producers, consumers;
  bool ignore_exited;  // threads that have ended are not waited for
};

class Barriers {
 public:
  void start(size_t threads);
  void signal(Thread& thread, const BarrierSignal& signal);
  // Whether the thread may go on at once; else it is put to ThreadState::kWaiting.
  bool wait(Thread& thread, int id);
  // Ends the thread; barriers that wait for it proceed.
  void exit(Thread& thread);
  // Why no thread of the group can go on.
  std::string explain(const Group& group) const;

 private:
  struct Barrier {
    int producers = -1, consumers = -1;  // expected; -1: nobody has signalled
    bool ignore_exited = false;
    std::vector<int> produced, consuming;  // numbers of the threads that signalled
  };
  void complete_if_ready(const Thread& thread, int id);

  static constexpr size_t kCount = 32;
  std::array<Barrier, kCount> barriers_;
  std::vector<std::array<uint8_t, kCount>> released_;  // waits that are granted, per thread
  int exited_ = 0;
};

}  // namespace xesim
