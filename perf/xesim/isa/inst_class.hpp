// Instructions by the unit that executes them.
#pragma once

#include "isa/inst.hpp"

namespace xesim {

enum class InstClass : uint8_t { kDpas, kMath, kMove, kFloat, kInteger, kControl, kSync, kSend };
constexpr size_t kInstClasses = 8;
// In the order of InstClass.
constexpr const char* kClassNames[kInstClasses] = {"dpas",        "math",    "moves", "float_alu",
                                                   "integer_alu", "control", "sync",  "sends"};

InstClass class_of(const Inst& inst);
bool has_float_source(const Inst& inst);

}  // namespace xesim
