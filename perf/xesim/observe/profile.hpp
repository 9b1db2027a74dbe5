// On which class of instructions the simulator spends its time: from the end of a worker's
// instruction to the end of its next one.
#pragma once

#include <array>
#include <vector>

#include "isa/inst_class.hpp"
#include "machine/observer.hpp"

namespace xesim {

class Profile : public Observer {
 public:
  explicit Profile(size_t workers) : workers_(workers) {}
  void on_group(const Group& group) override;
  void on_instruction(const Thread& thread, size_t index) override;
  void report(LaunchRecord& record) override;

 private:
  struct alignas(64) PerWorker {
    uint64_t since = 0;
    std::array<uint64_t, kInstClasses> ticks{};  // of the time-stamp counter
  };
  std::vector<PerWorker> workers_;
};

}  // namespace xesim
