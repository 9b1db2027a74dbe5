// What an instruction waits for before it starts, and the token it sets: software's side of the
// scoreboard.
#pragma once

#include <cstdint>
#include <string>

#include "isa/inst.hpp"

namespace xesim {

struct Scoreboard {
  // Waits until the instruction `distance` places earlier in `pipe` is done; 0 = no such wait.
  uint8_t distance = 0;
  bool has_distance = false;
  char pipe = ' ';  // ' ' the instruction's own one, 'A' all, 'F', 'I', 'L', 'M', 'S'
  enum class Token : uint8_t { kNone, kDst, kSrc, kSet } kind = Token::kNone;
  uint8_t token = 0;  // $n
};

// Meaning of inst.swsb; a code without meaning gives the pipe '?'.
Scoreboard scoreboard_of(const Isa& isa, const Inst& inst);
// "I@1", "$3.dst", "@2,$0.src"; empty if there is nothing to wait for.
std::string to_string(const Scoreboard& scoreboard);

}  // namespace xesim
