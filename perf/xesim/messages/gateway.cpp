// Barriers of a work-group and the end of threads.
#include <algorithm>

#include "messages/message.hpp"

namespace xesim {
namespace {

constexpr uint32_t kBarrierSignal = 4;

std::array<uint8_t, 32>& released_of(Group& group, int thread) {
  const auto index = static_cast<size_t>(thread);
  if (group.released.size() <= index) {
    group.released.resize(std::max(group.threads.size(), index + 1));
  }
  return group.released[index];
}

bool has_ended(const Group& group, int number) {
  const auto index = static_cast<size_t>(number);
  return index < group.threads.size() && group.threads[index] != nullptr &&
         group.threads[index]->state == ThreadState::kEnded;
}

// Xe2 does not wait for threads that ended, when the message says so.
int expected(const Group& group, int stated, const std::vector<int>& signalled,
             bool ignore_exited) {
  if (!ignore_exited) return stated;
  const int live = static_cast<int>(group.threads.size()) - group.exited;
  const auto ended = std::count_if(signalled.begin(), signalled.end(),
                                   [&](int number) { return has_ended(group, number); });
  return std::min(stated, live + static_cast<int>(ended));
}

void complete_if_ready(Thread& thread, int id) {
  Group& group = *thread.group;
  Barrier& barrier = group.barriers[static_cast<size_t>(id)];
  if (barrier.producers == 0 && barrier.consumers.empty()) return;
  if (barrier.producers <
      expected(group, barrier.expected_producers, barrier.arrived, barrier.ignore_exited)) {
    return;
  }
  if (static_cast<int>(barrier.consumers.size()) <
      expected(group, barrier.expected_consumers, barrier.consumers, barrier.ignore_exited)) {
    return;
  }
  thread.launch->observers.on_barrier(thread, id, BarrierStep::kComplete);
  const std::vector<int> consumers = std::move(barrier.consumers);
  barrier.consumers.clear();
  barrier.arrived.clear();
  barrier.producers = 0;
  barrier.expected_producers = barrier.expected_consumers = -1;
  for (const int number : consumers) {
    if (++released_of(group, number)[static_cast<size_t>(id)] == 0) {
      fail("barrier %d: thread %d signalled 256 times without waiting", id, number);
    }
    Thread& consumer = *group.threads[static_cast<size_t>(number)];
    if (consumer.state == ThreadState::kWaiting && consumer.waiting_barrier == id) {
      consumer.state = ThreadState::kReady;
    }
  }
}

// Header dword 2: [7:0] barrier, bit 8 (Xe2) only threads that live count, [15:14] type: 0 producer
// and consumer, 1 producer, 2 consumer, [23:16] producers, [31:24] consumers.
void signal_barrier(Message& m) {
  if (m.lanes == 0) return;
  Thread& thread = m.thread;
  Group& group = *thread.group;
  const Isa& isa = m.isa();
  if (!m.inst.src[0].exists()) unknown_message(m, "a barrier without a header");
  thread.require_defined(m.addresses + 8, 4, "src0 (barrier header)");
  const uint32_t header = thread.read<uint32_t>(m.addresses + 8);
  const auto id = static_cast<int>(header & 0xff);
  const uint32_t type = header >> 14 & 3;
  const auto producers = static_cast<int>(header >> 16 & 0xff);
  const auto consumers = static_cast<int>(header >> 24);
  const bool ignore_exited = isa.xe2 && (header >> 8 & 1) != 0;
  if (id != 0 && !isa.has_named_barriers) fail("%s has no named barriers, got id %d", isa.name, id);
  if (id >= 32) fail("barrier id %d: there are 32", id);
  if (type == 3) fail("barrier %d: type 3 has no meaning (header 0x%08x)", id, header);

  Barrier& barrier = group.barriers[static_cast<size_t>(id)];
  if (barrier.expected_producers == -1) {
    barrier.expected_producers = producers;
    barrier.expected_consumers = consumers;
  } else if (barrier.expected_producers != producers || barrier.expected_consumers != consumers) {
    fail(
        "barrier %d: thread %d expects %d producers and %d consumers, others that wait for it "
        "%d and %d",
        id, thread.number, producers, consumers, barrier.expected_producers,
        barrier.expected_consumers);
  }
  barrier.ignore_exited = ignore_exited;
  thread.launch->observers.on_barrier(
      thread, id, type == 2 ? BarrierStep::kSignalConsumer : BarrierStep::kSignal);
  if (type != 2) {
    ++barrier.producers;
    barrier.arrived.push_back(thread.number);
  }
  if (type != 1) barrier.consumers.push_back(thread.number);
  complete_if_ready(thread, id);
}

}  // namespace

void run_gateway(Message& m) {
  if (m.inst.send.end_of_thread) {  // whatever the lanes
    m.thread.state = ThreadState::kEnded;
    return exited_thread(m.thread);
  }
  if ((m.desc & 0xf) == kBarrierSignal) return signal_barrier(m);
  unknown_message(m, "gateway message");
}

bool wait_barrier(Thread& thread, int id) {
  if (id < 0 || id >= 32) fail("wait for barrier %d: there are 32", id);
  Group& group = *thread.group;
  uint8_t& released = released_of(group, thread.number)[static_cast<size_t>(id)];
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

void exited_thread(Thread& thread) {
  Group& group = *thread.group;
  ++group.exited;
  for (int id = 0; id < 32; ++id) {
    if (group.barriers[static_cast<size_t>(id)].ignore_exited) complete_if_ready(thread, id);
  }
}

}  // namespace xesim
