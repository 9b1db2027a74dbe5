#include "machine/program.hpp"

namespace xesim {

void run(Thread& thread, uint64_t budget) {
  const Program& p = *thread.launch->program;
  const Observers& observers = thread.launch->observers;
  const std::vector<int32_t>& index_of = p.index_of;
  // Counted here: an observer's call would take longer than some instructions.
  uint64_t* executed = thread.worker->executed.data();
  for (; budget != 0 && thread.state == ThreadState::kReady; --budget) {
    const uint32_t slot = thread.ip / 8;
    const int32_t found = thread.ip % 8 == 0 && slot < index_of.size() ? index_of[slot] : -1;
    if (found < 0) {
      thread.current = nullptr;
      fail("the instruction pointer 0x%x is not the start of an instruction", thread.ip);
    }
    const auto index = static_cast<size_t>(found);
    const Inst& inst = p.insts[index];
    thread.current = &inst;
    const Execute execute = p.execute[index];
    if (execute == nullptr) throw Fault(p.errors[index]);
    thread.ip = inst.ip + inst.size;
    execute(thread, inst);
    if (thread.state == ThreadState::kWaiting) return;  // it will run again
    ++executed[index];
    observers.on_instruction(thread, index);
  }
  if (thread.state == ThreadState::kEnded) observers.on_end(thread);
}

std::string describe_fault(const Thread& thread, const std::string& cause) {
  const Launch& launch = *thread.launch;
  char where[256];
  std::snprintf(where, sizeof where, ", group (%u, %u, %u), thread %d, ", thread.group->id[0],
                thread.group->id[1], thread.group->id[2], thread.number);
  std::string text =
      "kernel " + launch.kernel + where;  // names of C++ templates have thousands of characters
  if (thread.current != nullptr) {
    const Inst& inst = *thread.current;
    std::snprintf(where, sizeof where, "at 0x%04x [%016llx %016llx] ", inst.ip,
                  static_cast<unsigned long long>(inst.bits[1]),
                  static_cast<unsigned long long>(inst.bits[0]));
    text += where + disassemble(*launch.isa, inst);
  }
  return text + ": " + cause;
}

}  // namespace xesim
