#include "driver/scheduler.hpp"

#include <algorithm>
#include <chrono>

#include "machine/checks.hpp"

namespace xesim::driver {
namespace {

constexpr int kQueriesBeforeProgress = 8;

}  // namespace

Scheduler& Scheduler::instance() {
  static Scheduler* scheduler = new Scheduler;  // outlives every static object of the program
  return *scheduler;
}

std::shared_ptr<Stream> Scheduler::make_stream(Device& device) {
  auto stream = std::make_shared<Stream>();
  stream->device = &device;
  std::lock_guard lock(mutex_);
  streams_.push_back(stream);
  return stream;
}

void Scheduler::close_stream(const std::shared_ptr<Stream>& stream) {
  std::lock_guard lock(mutex_);
  while (advance(*stream)) {
  }
  std::erase(streams_, stream);
}

void Scheduler::enqueue(const std::shared_ptr<Stream>& stream, std::shared_ptr<Pending> pending) {
  if (pending->signal) {
    pending->signal->stream = stream;
    pending->signal->device = stream->device;
    pending->signal->queries = 0;
  }
  stream->pending.push_back(std::move(pending));
  stream->queries = 0;
}

void Scheduler::submit(const std::shared_ptr<Stream>& stream,
                       const std::vector<std::shared_ptr<const Command>>& commands) {
  std::lock_guard lock(mutex_);
  for (const auto& command : commands) {
    auto pending = std::make_shared<Pending>();
    pending->command = command;
    for (const auto& event : command->waits) pending->waits.push_back(event->signal);
    if (command->signal) {
      if (command->signal->counter_based) command->signal->signal = std::make_shared<Signal>();
      pending->signal = command->signal->signal;
    }
    enqueue(stream, std::move(pending));
  }
  settle();
  changed_.notify_all();
}

void Scheduler::submit_signal(const std::shared_ptr<Stream>& stream,
                              const std::shared_ptr<Signal>& done) {
  static const auto nothing = std::make_shared<const Command>();
  std::lock_guard lock(mutex_);
  auto pending = std::make_shared<Pending>();
  pending->command = nothing;
  pending->signal = done;
  enqueue(stream, std::move(pending));
  settle();
  changed_.notify_all();
}

void Scheduler::finish(Signal& signal, uint64_t start, uint64_t end) {
  signal.done = true;
  signal.start = start;
  signal.end = end;
  changed_.notify_all();
}

// Runs the stream's first command, after what it waits for. False if that cannot be done yet.
bool Scheduler::advance(Stream& stream) {
  if (stream.advancing || stream.pending.empty()) return false;
  const std::shared_ptr<Pending> first = stream.pending.front();
  stream.advancing = true;
  const bool ready = std::all_of(first->waits.begin(), first->waits.end(),
                                 [&](auto& wait) { return ensure(*wait); });
  stream.advancing = false;
  if (stream.pending.empty() || stream.pending.front() != first)
    return true;  // dropped by a fault elsewhere
  if (!ready) return false;
  stream.pending.pop_front();
  execute(stream, *first);
  run_events();
  return true;
}

// Runs the commands that only wait, signal or reset: the runtime counts on these being done soon
// after they are submitted, whatever else is held back.
void Scheduler::run_events() {
  for (bool progress = true; progress;) {
    progress = false;
    for (const auto& stream : streams_) {
      while (!stream->advancing && !stream->pending.empty()) {
        const std::shared_ptr<Pending> first = stream->pending.front();
        const bool ready =
            !first->command->run && std::all_of(first->waits.begin(), first->waits.end(),
                                                [](const auto& wait) { return wait->done; });
        if (!ready) break;
        stream->pending.pop_front();
        execute(*stream, *first);
        progress = true;
      }
    }
  }
}

// After something was submitted or signalled.
void Scheduler::settle() {
  if (current_checks().deferred) {
    run_events();
  } else {
    run_ready();
  }
}

// Runs what leads to the signal. False if it needs something that has not been submitted.
bool Scheduler::ensure(Signal& signal) {
  while (!signal.done) {
    const std::shared_ptr<Stream> stream = signal.stream.lock();
    if (stream == nullptr || !advance(*stream)) return signal.done;
  }
  return true;
}

void Scheduler::execute(Stream& stream, Pending& pending) {
  const Command& command = *pending.command;
  const uint64_t start = now_ns();
  std::string fault;
  try {
    if (command.run) command.run();
  } catch (const std::exception& error) {
    fault = error.what();
  }
  if (command.reset) command.reset->signal->done = false;
  if (pending.signal) finish(*pending.signal, start, std::max(now_ns(), start + 1));
  if (fault.empty()) return;
  report(fault);
  stream.device->lost = true;
  drop_all(*stream.device);
}

void Scheduler::drop_all(Device& device) {
  for (const auto& stream : streams_) {
    if (stream->device != &device) continue;
    const std::deque<std::shared_ptr<Pending>> dropped = std::move(stream->pending);
    stream->pending.clear();
    const uint64_t now = now_ns();
    for (const auto& pending : dropped) {
      if (pending->command->reset) pending->command->reset->signal->done = false;
      if (pending->signal) finish(*pending->signal, now, now + 1);
    }
  }
}

void Scheduler::run_ready() {
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t i = 0; i < streams_.size(); ++i) {
      while (advance(*streams_[i])) progress = true;
    }
  }
}

void Scheduler::run_all() {
  std::lock_guard lock(mutex_);
  run_ready();
}

ze_result_t Scheduler::result_of(Device* device) {
  if (device == nullptr || !device->lost) return ZE_RESULT_SUCCESS;
  device->lost = false;
  return ZE_RESULT_ERROR_DEVICE_LOST;
}

// `step(run)` says whether the goal is reached; with `run` it first runs what leads there.
template <class Step>
ze_result_t Scheduler::wait_until(Lock& lock, uint64_t timeout, int& queries, Step step) {
  if (timeout == 0)
    return step(++queries % kQueriesBeforeProgress == 0) ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY;
  const auto begin = std::chrono::steady_clock::now();
  // Longer than any process lives, and still inside the clock's range.
  const auto limit = std::chrono::nanoseconds(std::min<uint64_t>(timeout, uint64_t{1} << 60));
  while (!step(true)) {
    if (changed_.wait_until(lock, begin + limit) == std::cv_status::timeout)
      return ZE_RESULT_NOT_READY;
  }
  return ZE_RESULT_SUCCESS;
}

ze_result_t Scheduler::wait(const Event& event, uint64_t timeout) {
  std::shared_ptr<Signal> signal;
  exclusively([&] { signal = event.signal; });
  return wait(signal, timeout);
}

ze_result_t Scheduler::wait(const std::shared_ptr<Signal>& signal, uint64_t timeout) {
  Lock lock(mutex_);
  const ze_result_t result = wait_until(lock, timeout, signal->queries, [&](bool run) {
    return signal->done || (run && ensure(*signal));
  });
  return result != ZE_RESULT_SUCCESS || timeout == 0 ? result : result_of(signal->device);
}

ze_result_t Scheduler::wait(const std::shared_ptr<Stream>& stream, uint64_t timeout) {
  Lock lock(mutex_);
  const ze_result_t result = wait_until(lock, timeout, stream->queries, [&](bool run) {
    while (run && advance(*stream)) {
    }
    return stream->pending.empty();
  });
  return result != ZE_RESULT_SUCCESS || timeout == 0 ? result : result_of(stream->device);
}

ze_result_t Scheduler::wait(Device& device) {
  Lock lock(mutex_);
  run_ready();
  return result_of(&device);
}

void Scheduler::host_set(Event& event, bool done) {
  std::lock_guard lock(mutex_);
  if (done) {
    const uint64_t now = now_ns();
    finish(*event.signal, now, now + 1);
    settle();
  } else {
    event.signal->done = false;
    event.signal->queries = 0;
  }
}

}  // namespace xesim::driver
