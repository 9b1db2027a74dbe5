// Names of the codes of an instruction, and a send's message in words.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "isa/inst.hpp"

namespace xesim {

// As by printf, up to 127 characters.
template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[128];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

std::string_view file_name(File file);  // "r", "acc", "null", ...
std::string_view condition_name(Condition condition);
std::string_view predicate_suffix(Predicate predicate);  // "" per lane, ".any", ".all16h", ...
std::string_view math_name(MathFn function);
std::string_view sync_name(SyncFn function);
std::string_view sfid_name(Sfid sfid);

// Registers and descriptors of a send: "r5 r10 null:0 0x0 0x02108580".
std::string send_text(const Isa& isa, const Inst& inst);
// The message in words: "load.ugm.d32x1t.a64"; empty if it has no short name.
std::string message_text(const SendInfo& send);

}  // namespace xesim
