// Counting: what a finished launch did, from how often each instruction ran and from the messages'
// own counts.
#pragma once

#include "machine/launch.hpp"
#include "machine/program.hpp"

namespace xesim {

enum class InstClass : uint8_t { kDpas, kMath, kMove, kFloat, kInteger, kControl, kSync, kSend };
InstClass class_of(const Inst& inst);

void count_instructions(const Program& program, const std::vector<Worker>& workers,
                        LaunchRecord& record);
void keep_record(LaunchRecord record);

}  // namespace xesim
