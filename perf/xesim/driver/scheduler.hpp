// Runs commands. Each stream is first in, first out; between streams only events order anything.
//
// With the check "deferred" a command runs when the host waits for it, or for something that
// depends on it: every wait runs exactly what it needs, so a result that is read without a wait is
// not there yet. Queries (event and fence status, waits with a timeout of zero) do not run anything
// at first; a program that polls makes progress at every eighth query of the same object. Commands
// that only wait, signal or reset events are not held back. Without the check a command runs as
// soon as it is submitted and its events allow.
//
// A command that faults reports its text; the commands that are queued on its device then are
// dropped (their events are signalled, so nothing hangs) and the next wait on the device returns
// "device lost". After that the device works again.
#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

#include "driver/objects.hpp"

namespace xesim::driver {

class Scheduler {
 public:
  static Scheduler& instance();

  std::shared_ptr<Stream> make_stream(Device& device);
  // Runs what is left in it.
  void close_stream(const std::shared_ptr<Stream>& stream);

  void submit(const std::shared_ptr<Stream>& stream,
              const std::vector<std::shared_ptr<const Command>>& commands);
  // Signals `done` when all that was submitted before has run.
  void submit_signal(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Signal>& done);

  // NOT_READY after the timeout in nanoseconds; all ones = for ever, zero = a query.
  ze_result_t wait(const Event& event, uint64_t timeout);
  ze_result_t wait(const std::shared_ptr<Signal>& signal, uint64_t timeout);
  ze_result_t wait(const std::shared_ptr<Stream>& stream, uint64_t timeout);
  ze_result_t wait(Device& device);
  void host_set(Event& event, bool done);

  // Runs `action` while no command runs.
  template <class Action>
  void exclusively(Action action) {
    std::lock_guard lock(mutex_);
    action();
  }
  void run_all();

 private:
  using Lock = std::unique_lock<std::mutex>;

  void enqueue(const std::shared_ptr<Stream>& stream, std::shared_ptr<Pending> pending);
  bool advance(Stream& stream);
  bool ensure(Signal& signal);
  void execute(Stream& stream, Pending& pending);
  void drop_all(Device& device);
  void finish(Signal& signal, uint64_t start, uint64_t end);
  void run_ready();
  void run_events();
  void settle();
  ze_result_t result_of(Device* device);
  template <class Step>
  ze_result_t wait_until(Lock& lock, uint64_t timeout, int& queries, Step step);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Stream>> streams_;
};

}  // namespace xesim::driver
