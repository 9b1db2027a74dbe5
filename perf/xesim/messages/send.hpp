// The instruction that reaches memory, barriers and the thread's end.
#pragma once

#include "machine/thread.hpp"

namespace xesim {

void execute_send(Thread& thread, const Inst& inst);

}  // namespace xesim
