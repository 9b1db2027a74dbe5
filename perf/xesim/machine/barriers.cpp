#include "machine/barriers.hpp"

#include <algorithm>
#include <cstdio>

#include "machine/thread.hpp"

namespace xesim {

void Barriers::start(size_t threads) {
  barriers_.fill({});
  released_.assign(threads, {});
  exited_ = 0;
}

void Barriers::signal(Thread& thread, const BarrierSignal& signal) {
  const int id = signal.id;
  if (id < 0 || id >= static_cast<int>(kCount)) fail("barrier id %d: there are 32", id);
  Barrier& barrier = barriers_[static_cast<size_t>(id)];
  if (barrier.producers == -1) {
    barrier.producers = signal.producers;
    barrier.consumers = signal.consumers;
  } else if (barrier.producers != signal.producers || barrier.consumers != signal.consumers) {
    fail(
        "barrier %d: thread %d expects %d producers and %d consumers, others that wait for it "
        "%d and %d",
        id, thread.number, signal.producers, signal.consumers, barrier.producers,
        barrier.consumers);
  }
  barrier.ignore_exited = signal.ignore_exited;
  thread.launch->observers.on_barrier(
      thread, id, signal.produces ? BarrierStep::kSignal : BarrierStep::kSignalConsumer);
  if (signal.produces) barrier.produced.push_back(thread.number);
  if (signal.consumes) barrier.consuming.push_back(thread.number);
  complete_if_ready(thread, id);
}

void Barriers::complete_if_ready(const Thread& thread, int id) {
  Barrier& barrier = barriers_[static_cast<size_t>(id)];
  const auto& threads = thread.group->threads;
  const auto all_of = [&](int stated, const std::vector<int>& signalled) {
    if (barrier.ignore_exited) {
      const auto ended = std::count_if(signalled.begin(), signalled.end(), [&](int number) {
        return threads[static_cast<size_t>(number)]->state == ThreadState::kEnded;
      });
      stated =
          std::min(stated, static_cast<int>(threads.size()) - exited_ + static_cast<int>(ended));
    }
    return static_cast<int>(signalled.size()) >= stated;
  };
  if (barrier.produced.empty() && barrier.consuming.empty()) return;
  if (!all_of(barrier.producers, barrier.produced)) return;
  if (!all_of(barrier.consumers, barrier.consuming)) return;
  thread.launch->observers.on_barrier(thread, id, BarrierStep::kComplete);
  const std::vector<int> consumers = std::move(barrier.consuming);
  barrier.consuming.clear();
  barrier.produced.clear();
  barrier.producers = barrier.consumers = -1;
  for (const int number : consumers) {
    if (++released_[static_cast<size_t>(number)][static_cast<size_t>(id)] == 0) {
      fail("barrier %d: thread %d signalled 256 times without waiting", id, number);
    }
    Thread& consumer = *threads[static_cast<size_t>(number)];
    if (consumer.state == ThreadState::kWaiting && consumer.waiting_barrier == id) {
      consumer.state = ThreadState::kReady;
    }
  }
}

bool Barriers::wait(Thread& thread, int id) {
  if (id < 0 || id >= static_cast<int>(kCount)) fail("wait for barrier %d: there are 32", id);
  uint8_t& released = released_[static_cast<size_t>(thread.number)][static_cast<size_t>(id)];
  if (released == 0) {
    thread.state = ThreadState::kWaiting;
    thread.waiting_barrier = id;
    return false;
  }
  --released;
  thread.waiting_barrier = -1;
  thread.launch->observers.on_barrier(thread, id, BarrierStep::kPass);
  return true;
}

void Barriers::exit(Thread& thread) {
  thread.state = ThreadState::kEnded;
  ++exited_;
  for (int id = 0; id < static_cast<int>(kCount); ++id) {
    if (barriers_[static_cast<size_t>(id)].ignore_exited) complete_if_ready(thread, id);
  }
}

std::string Barriers::explain(const Group& group) const {
  std::string text = "deadlock: no thread of the group can go on;";
  int shown = 0;
  for (const auto& thread : group.threads) {
    if (thread->state != ThreadState::kWaiting || shown++ == 4) continue;
    const Barrier& b = barriers_[static_cast<size_t>(thread->waiting_barrier)];
    char line[160];
    std::snprintf(
        line, sizeof line,
        " thread %d waits at barrier %d (%zu of %d producers, %zu of %d consumers arrived)",
        thread->number, thread->waiting_barrier, b.produced.size(), b.producers, b.consuming.size(),
        b.consumers);
    text += line;
  }
  if (exited_ != 0) text += ", " + std::to_string(exited_) + " threads have ended";
  return text;
}

}  // namespace xesim
