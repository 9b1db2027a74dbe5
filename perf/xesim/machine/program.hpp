// A kernel's code, decoded once: instructions, and for each the function that executes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "machine/thread.hpp"

namespace xesim {

using Execute = void (*)(Thread&, const Inst&);

struct Program {
  const Isa* isa = nullptr;
  int grf_count = 128;
  std::vector<Inst> insts;
  std::vector<Execute> execute;     // parallel to insts; null = cannot be executed, see errors
  std::vector<std::string> errors;  // why not
  std::vector<int32_t> index_of;    // ip / 8 -> index, -1 inside of an instruction
};

// Runs `thread` for at most `budget` instructions, until it waits or ends. Faults carry only their
// cause.
void run(Thread& thread, uint64_t budget);

// Kernel, thread, address, bits and disassembly of the instruction that a fault stopped at, in
// front of `cause`.
std::string describe_fault(const Thread& thread, const std::string& cause);

}  // namespace xesim
