// Which function executes an instruction: one row per opcode.
#pragma once

#include <cstdint>
#include <span>

#include "machine/program.hpp"

namespace xesim {

// Throws Fault if nothing here implements the instruction.
Execute executor_of(const Isa& isa, const Inst& inst);

Program decode_program(const Isa& isa, std::span<const uint8_t> text, int grf_count);

}  // namespace xesim
