// The matrix instruction.
#pragma once

#include "machine/program.hpp"

namespace xesim {

// Checks the types and the width for this machine; throws Fault.
Execute dpas_function(const Isa& isa, const Inst& inst);
// Executes nothing: see is_dummy_dpas.
void dpas_nothing(Thread& thread, const Inst& inst);
bool is_dummy_dpas(const Isa& isa, const Inst& inst, const Inst& next);

}  // namespace xesim
