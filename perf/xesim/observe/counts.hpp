// Counts instructions by class, bytes by kind of message, barriers.
#pragma once

#include <vector>

#include "machine/observer.hpp"
#include "machine/program.hpp"
#include "observe/record.hpp"

namespace xesim {

class Counts : public Observer {
 public:
  Counts(const Program& program, std::span<const Worker> workers, bool listing)
      : program_(program), workers_(workers), messages_(workers.size()), listing_(listing) {}
  void on_message(const Thread& thread, const MessageEvent& event) override;
  void on_barrier(const Thread& thread, int id, BarrierStep step) override;
  void report(LaunchRecord& record) override;

 private:
  const Program& program_;
  const std::span<const Worker> workers_;
  std::vector<LaunchRecord> messages_;  // per worker: what messages and barriers did
  const bool listing_;
};

}  // namespace xesim
