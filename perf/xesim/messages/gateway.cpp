// Barriers of a work-group and the end of threads.
#include "messages/message.hpp"

namespace xesim {
namespace {

constexpr uint32_t kBarrierSignal = 4;

// Header dword 2: [7:0] barrier, bit 8 (Xe2) only threads that live count, [15:14] type: 0 producer
// and consumer, 1 producer, 2 consumer, [23:16] producers, [31:24] consumers.
void signal_barrier(Message& m) {
  if (m.lanes == 0) return;
  Thread& thread = m.thread;
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
  if (type == 3) fail("barrier %d: type 3 has no meaning (header 0x%08x)", id, header);

  thread.group->barriers.signal(thread,
                                {id, type != 2, type != 1, producers, consumers, ignore_exited});
}

}  // namespace

void run_gateway(Message& m) {
  if (m.inst.send.end_of_thread) return m.thread.group->barriers.exit(m.thread);  // whatever lanes
  if ((m.desc & 0xf) == kBarrierSignal) return signal_barrier(m);
  unknown_message(m, "gateway message");
}

}  // namespace xesim
