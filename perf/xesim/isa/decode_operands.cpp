// Operands: registers, regions, types, immediates.
#include "isa/decode_parts.hpp"

namespace xesim {
namespace {

constexpr Type kTypes[16] = {Type::kUB,   Type::kUW, Type::kUD,   Type::kUQ,  Type::kB, Type::kW,
                             Type::kD,    Type::kQ,  Type::kBF8,  Type::kHF,  Type::kF, Type::kDF,
                             Type::kNone, Type::kBF, Type::kTF32, Type::kNone};
constexpr Type kTernaryTypes[2][8] = {
    {Type::kUB, Type::kUW, Type::kUD, Type::kUQ, Type::kB, Type::kW, Type::kD, Type::kQ},
    {Type::kBF8, Type::kHF, Type::kF, Type::kDF, Type::kNone, Type::kBF, Type::kTF32, Type::kNone}};
constexpr uint8_t kStride[4] = {0, 1, 2, 4};
constexpr uint8_t kTernaryVerticalStride[4] = {0, 1, 4, 8};
constexpr File kArchitecture[16] = {File::kNull, File::kAddress, File::kAcc,  File::kFlag,
                                    File::kCe,   File::kMsg,     File::kSp,   File::kSr,
                                    File::kCr,   File::kN,       File::kIp,   File::kTdr,
                                    File::kTm,   File::kFc,      File::kNone, File::kDbg};

bool uses_math_macro(const Inst& inst) {
  if (inst.op == Op::kMadm) return true;
  return inst.op == Op::kMath && (inst.function == static_cast<int>(MathFn::kInvm) ||
                                  inst.function == static_cast<int>(MathFn::kRsqtm));
}

// The five-bit subregister field in bytes; in a math macro it is the number of an mme register
// instead.
bool set_register_or_macro(Decoder& d, Operand& operand, bool grf, uint32_t number, uint32_t field,
                           uint32_t low_bit) {
  if (uses_math_macro(d.inst)) {
    if (field > 8) return d.refuse("unknown math macro register", field);
    operand.macro = static_cast<uint8_t>(field);
    return set_register(d, operand, grf, number, 0);
  }
  return set_register(d, operand, grf, number, field * d.layout.subregister_unit + low_bit);
}

bool set_type(Decoder& d, Operand& operand, uint32_t code) {
  operand.type = kTypes[code];
  return operand.type != Type::kNone || d.refuse("unknown type", code);
}

// Ten bits, signed; with a low bit behind them where the family has one.
int16_t indirect_offset(const Decoder& d, Field field, int low_bit, bool has_low_bit) {
  const int32_t high = sign_extend(d(field), 10);
  return static_cast<int16_t>(has_low_bit ? high * 2 + d(low_bit) : high);
}

uint64_t low_bits(uint64_t value, int count) {
  return count >= 64 ? value : value & ((uint64_t{1} << count) - 1);
}

bool decode_immediate(Decoder& d, Operand& operand, uint32_t type_code) {
  operand.file = File::kImmediate;
  operand.immediate = d(kImmediate);
  switch (type_code) {  // byte types mean packed vectors here
    case 0:
      operand.form = ImmediateForm::kUV;
      operand.type = Type::kUW;
      return true;
    case 4:
      operand.form = ImmediateForm::kV;
      operand.type = Type::kW;
      return true;
    case 8:
      operand.form = ImmediateForm::kVF;
      operand.type = Type::kF;
      return true;
    default:
      break;
  }
  if (!set_type(d, operand, type_code)) return false;
  const int width = type_bits(operand.type);
  operand.immediate = width == 64 ? (uint64_t{d(kImmediateHigh)} << 32) | d(kImmediate)
                                  : low_bits(operand.immediate, width);
  return true;
}

}  // namespace

bool set_register(Decoder& d, Operand& operand, bool grf, uint32_t number, uint32_t subregister) {
  operand.subregister = static_cast<uint8_t>(subregister);
  if (grf) {
    operand.file = File::kGrf;
    operand.number = static_cast<uint8_t>(number);
    operand.byte = number * d.isa.grf_bytes + subregister;
    return true;
  }
  operand.file = kArchitecture[number >> 4];
  operand.number = number & 15;
  switch (operand.file) {
    case File::kNone:
      return d.refuse("unknown register", number);
    case File::kNull:
      operand.byte = 0;
      break;
    case File::kAcc:
      if (operand.number >= d.isa.accumulators)
        return d.refuse("unknown accumulator", operand.number);
      operand.byte = operand.number * d.isa.grf_bytes + subregister;
      break;
    case File::kFlag:
      if (operand.number >= d.isa.flag_registers)
        return d.refuse("unknown flag register", operand.number);
      [[fallthrough]];
    default:
      operand.byte = operand.number * 4 + subregister;
  }
  return true;
}

bool decode_dst(Decoder& d) {
  Operand& dst = d.inst.dst;
  const int low_bit = d.layout.low_bit_dst;
  if (!set_type(d, dst, d(kDstType))) return false;
  dst.horizontal = kStride[d(kDstStride)];
  if (dst.horizontal == 0) dst.horizontal = 1;
  if (d(kDstIndirect)) {
    dst.file = File::kGrf;
    dst.indirect = true;
    dst.address = static_cast<uint8_t>(d(kDstAddress));
    dst.offset = indirect_offset(d, kDstOffset, low_bit, low_bit != 0);
    return true;
  }
  return set_register_or_macro(d, dst, d(kDstGrf), d(kDstReg), d(kDstSub),
                               low_bit != 0 ? d(low_bit) : 0);
}

bool decode_source(Decoder& d, int index) {
  Operand& src = d.inst.src[index];
  const uint32_t type_code = d(kSourceType[index]);
  if (d(kSourceImmediate[index])) return decode_immediate(d, src, type_code);
  if (!set_type(d, src, type_code)) return false;
  const uint32_t modifier = d(kSourceModifier[index]);
  src.absolute = modifier & 1;
  src.negate = modifier >> 1;

  const int start = kSourceStart[index];
  const int low_bit = start + d.layout.low_bit_src;
  const bool has_low_bit = d.layout.low_bit_src != 0;
  const uint32_t width = d(at(kSrcWidth, start)), vertical = d(at(d.layout.vertical, start));
  if (width > 4) return d.refuse("unknown region width code", width);
  src.width = static_cast<uint8_t>(1 << width);
  src.horizontal = kStride[d(at(kSrcHorizontal, start))];
  src.indirect = d(start + kSrcIndirect);
  src.vxh = src.indirect && vertical == d.layout.vertical_indirect;
  if (vertical > 6 && !src.vxh) return d.refuse("unknown vertical stride code", vertical);
  src.vertical = static_cast<uint8_t>(src.vxh || vertical == 0 ? 0 : 1 << (vertical - 1));
  if (src.indirect) {
    src.file = File::kGrf;
    src.address = static_cast<uint8_t>(d(at(kSrcAddress, start)));
    src.offset = indirect_offset(d, at(kSrcOffset, start), low_bit, has_low_bit);
    return true;
  }
  return set_register_or_macro(d, src, d(start + kSrcGrf), d(at(kSrcReg, start)),
                               d(at(kSrcSub, start)), has_low_bit ? d(low_bit) : 0);
}

bool decode_ternary(Decoder& d) {
  const Type* types = kTernaryTypes[d(kTernaryFloat)];
  Operand& dst = d.inst.dst;
  dst.type = types[d(kTernaryDstType)];
  if (dst.type == Type::kNone) return d.refuse("unknown destination type", d(kTernaryDstType));
  dst.horizontal = d(kTernaryDstStride) ? 2 : 1;
  if (!set_register_or_macro(d, dst, d(kDstGrf), d(kDstReg), d(kDstSub), 0)) return false;

  for (int i = 0; i < 3; ++i) {
    Operand& src = d.inst.src[i];
    const int start = kTernaryStart[i];
    src.type = types[d(kTernaryType[i])];
    if (src.type == Type::kNone) return d.refuse("unknown source type", d(kTernaryType[i]));
    if (kTernaryImmediate[i] >= 0 && d(kTernaryImmediate[i])) {
      if (type_bits(src.type) != 16)
        return d.refuse("immediate of a type that is not 16 bits wide", d(kTernaryType[i]));
      src.file = File::kImmediate;
      src.immediate = d(kTernaryImmediateBits[i]);
      continue;
    }
    if (d.inst.op != Op::kBfn) {  // its table lies there
      const uint32_t modifier = d(kTernaryModifier[i]);
      src.absolute = modifier & 1;
      src.negate = modifier >> 1;
    }
    const uint8_t horizontal = kStride[d(at(kSrcHorizontal, start))];
    if (i == 2) {  // <h>
      src.vertical = horizontal;
    } else {  // <v;h>: w = v / h
      const uint32_t code =
          uint32_t{d(kTernaryVertical[i][0])} << 1 | uint32_t{d(kTernaryVertical[i][1])};
      src.vertical = kTernaryVerticalStride[code];
      src.horizontal = horizontal;
      if (horizontal == 0)
        src.width = src.vertical == 0 ? 1 : src.vertical;
      else if (src.vertical >= horizontal)
        src.width = src.vertical / horizontal;
      else
        return d.refuse("ternary region whose vertical stride is below the horizontal one", code);
    }
    if (!set_register_or_macro(d, src, d(start + kSrcGrf), d(at(kSrcReg, start)),
                               d(at(kSrcSub, start)), 0)) {
      return false;
    }
  }
  return true;
}

bool decode_dpas(Decoder& d) {
  const Type* types = kTernaryTypes[d(kTernaryFloat)];
  d.inst.repeat_count = static_cast<uint8_t>(d(kDpasRepeat) + 1);
  d.inst.systolic_depth = static_cast<uint8_t>(1 << d(kDpasDepth));
  Operand& dst = d.inst.dst;
  dst.type = types[d(kTernaryDstType)];
  dst.horizontal = 1;
  if (dst.type == Type::kNone) return d.refuse("unknown destination type", d(kTernaryDstType));
  const auto unit = static_cast<uint32_t>(d.layout.subregister_unit);
  if (!set_register(d, dst, d(kDstGrf), d(kDstReg), d(kDstSub) * unit)) return false;
  for (int i = 0; i < 3; ++i) {
    Operand& src = d.inst.src[i];
    const int start = kTernaryStart[i];
    src.vertical = 1;
    src.type = types[d(kTernaryType[i])];
    const uint32_t precision = i == 0 ? 0 : d(kDpasPrecision[i]);
    if (precision != 0) {  // 1: four bits, 2: two bits; the sign is that of ub or b
      if (precision == 3 || (src.type != Type::kUB && src.type != Type::kB)) {
        return d.refuse("unknown precision of a dpas operand", precision);
      }
      const bool is_signed = src.type == Type::kB;
      src.type = precision == 1 ? (is_signed ? Type::kS4 : Type::kU4)
                                : (is_signed ? Type::kS2 : Type::kU2);
    }
    if (src.type == Type::kNone) return d.refuse("unknown source type", d(kTernaryType[i]));
    if (!set_register(d, src, d(start + kSrcGrf), d(at(kSrcReg, start)),
                      d(at(kSrcSub, start)) * unit)) {
      return false;
    }
  }
  return true;
}

}  // namespace xesim
