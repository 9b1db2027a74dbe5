// What decode.cpp and decode_operands.cpp share.
#pragma once

#include <cstdio>
#include <string>

#include "isa/fields.hpp"
#include "isa/inst.hpp"

namespace xesim {

// One instruction on its way: the bits, where they lie, and the first thing that was wrong.
struct Decoder {
  const Isa& isa;
  const Layout& layout;
  const Bits128& bits;
  Inst& inst;
  std::string& error;

  uint32_t operator()(Field field) const { return get(bits, field); }
  bool operator()(int bit) const { return get(bits, bit); }

  bool refuse(const char* what, uint32_t value) {
    char text[96];
    std::snprintf(text, sizeof text, "%s 0x%x", what, value);
    error = text;
    return false;
  }
};

// The row of an opcode's code; null if there is none.
const OpcodeRow* row_at(uint32_t code);

// Operands of unary and binary instructions (also ret and sync), of ternary ones, of dpas.
bool decode_dst(Decoder& d);
bool decode_source(Decoder& d, int index);
bool decode_ternary(Decoder& d);
bool decode_dpas(Decoder& d);
// A register without region or type, as sends, call and ret name it.
bool set_register(Decoder& d, Operand& operand, bool grf, uint32_t number, uint32_t subregister);

}  // namespace xesim
