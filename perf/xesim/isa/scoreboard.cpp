#include "isa/scoreboard.hpp"

namespace xesim {
namespace {

using Token = Scoreboard::Token;

bool is_send(const Inst& inst) { return row_of(inst.op).format == Format::kSend; }
bool is_dpas(const Inst& inst) { return row_of(inst.op).format == Format::kDpas; }

void set_distance(Scoreboard& s, char pipe, uint32_t distance) {
  s.has_distance = true;
  s.pipe = pipe;
  s.distance = static_cast<uint8_t>(distance);
}
void set_token(Scoreboard& s, uint32_t token, Token kind) {
  s.token = static_cast<uint8_t>(token);
  s.kind = kind;
}

// Bits [2:0] distance, [6:3] pipe.
void in_order(Scoreboard& s, uint32_t code, const char (&pipes)[17]) {
  if ((code & 7) != 0) set_distance(s, pipes[code >> 3 & 15], code & 7);
}

// Bit 7: token [3:0] with distance [6:4]; else [6:4] 2, 3, 4 a token alone; else a distance.
Scoreboard dg2_scoreboard(const Inst& inst, uint32_t code) {
  Scoreboard s;
  const uint32_t kind = code >> 4 & 7;
  if (code & 0x80) {
    const bool sets = is_send(inst) || is_dpas(inst) || inst.op == Op::kMath;
    set_distance(s, is_send(inst) ? 'A' : ' ', kind);
    set_token(s, code & 15, sets ? Token::kSet : Token::kDst);
  } else if (kind >= 2 && kind <= 4) {
    set_token(s, code & 15, kind == 2 ? Token::kDst : kind == 3 ? Token::kSrc : Token::kSet);
  } else {
    in_order(s, code, " AFI??????L?????");
  }
  return s;
}

// Bits [9:8] mode. 0: a token [4:0] of kind [6:5] if bit 7, else a distance. Others: token [4:0]
// and distance [7:5], the mode says which pipe (send) or which kind (dpas, others).
Scoreboard xe2_scoreboard(const Inst& inst, uint32_t code) {
  Scoreboard s;
  const uint32_t mode = code >> 8, token = code & 31, distance = code >> 5 & 7;
  if (code == 0xF0) return s;  // {NoAccSBSet}
  if (mode == 0) {
    constexpr Token kinds[] = {Token::kDst, Token::kSrc, Token::kSet, Token::kNone};
    if (code & 0x80)
      set_token(s, token, kinds[code >> 5 & 3]);
    else
      in_order(s, code, " AFILMS?????????");
  } else if (is_send(inst)) {
    set_distance(s, " AFI"[mode], distance);
    set_token(s, token, Token::kSet);
  } else if (is_dpas(inst)) {
    constexpr Token kinds[] = {Token::kNone, Token::kSet, Token::kSrc, Token::kDst};
    set_distance(s, ' ', distance);
    set_token(s, token, kinds[mode]);
  } else {
    set_distance(s, mode == 3 ? 'A' : ' ', distance);
    set_token(s, token, mode == 2 ? Token::kSrc : Token::kDst);
  }
  return s;
}

}  // namespace

Scoreboard scoreboard_of(const Isa& isa, const Inst& inst) {
  return isa.family == Family::kDg2 ? dg2_scoreboard(inst, inst.swsb)
                                    : xe2_scoreboard(inst, inst.swsb);
}

std::string to_string(const Scoreboard& s) {
  constexpr const char* kinds[] = {"", ".dst", ".src", ""};
  std::string text;
  if (s.has_distance) {
    if (s.pipe != ' ') text += s.pipe;
    text += "@" + std::to_string(s.distance);
  }
  if (s.kind == Token::kNone) return text;
  return text + (text.empty() ? "$" : ",$") + std::to_string(s.token) +
         kinds[static_cast<int>(s.kind)];
}

}  // namespace xesim
