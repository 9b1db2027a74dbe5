// Bits -> Inst: the header that all instructions share, then one function per format.
#include "isa/decode_parts.hpp"

namespace xesim {
namespace {

bool decode_header(Decoder& d) {
  Inst& inst = d.inst;
  const Layout& at = d.layout;
  inst.swsb = static_cast<uint16_t>(d(at.swsb));
  inst.no_mask = d(kNoMask);
  inst.atomic = d(kAtomic);
  inst.flag = static_cast<uint8_t>(d(at.flag));
  const uint32_t size = d(at.exec_size), predicate = d(at.predicate);
  if (size > 5) return d.refuse("unknown execution size code", size);
  inst.exec_size = static_cast<uint8_t>(1 << size);
  inst.channel_offset = static_cast<uint8_t>(d(at.channel_offset) * at.channel_unit);
  if (inst.channel_offset + inst.exec_size > 32) {
    return d.refuse("channels beyond 31: first one", inst.channel_offset);
  }
  inst.predicate_inverse = d(kPredicateInverse);
  if (d.isa.family != Family::kDg2 || predicate <= 1) {
    inst.predicate = static_cast<Predicate>(predicate);  // none, lane, any, all
    return true;
  }
  if (predicate > 13) return d.refuse("unknown predicate control", predicate);
  // anyv, allv, any2h, all2h, ... all32h follow each other from code 2
  inst.predicate = static_cast<Predicate>(static_cast<uint32_t>(Predicate::kAnyV) + predicate - 2);
  return true;
}

bool decode_condition(Decoder& d) {
  const uint32_t code = d(kFunction);
  if (code == 7 || (code > 9 && code != 15)) return d.refuse("unknown condition", code);
  d.inst.condition = static_cast<Condition>(code);
  return true;
}

bool has_wide_immediate(const Inst& inst) {
  return inst.src[0].file == File::kImmediate && type_bits(inst.src[0].type) == 64;
}

bool decode_alu(Decoder& d, int sources) {
  d.inst.saturate = d(kSaturate);
  d.inst.write_acc = d.layout.low_bit_dst == 0 && d(kBit33);
  if (!decode_dst(d) || !decode_source(d, 0)) return false;
  if (sources == 2) {
    if (d.inst.src[0].file == File::kImmediate)
      return d.refuse("first of two sources is immediate", 1);
    if (!decode_source(d, 1)) return false;
    if (d.inst.src[1].file == File::kImmediate && type_bits(d.inst.src[1].type) == 64) {
      return d.refuse("64-bit immediate as second source, type", d(kSourceType[1]));
    }
  }
  if (d.inst.op == Op::kMath || has_wide_immediate(d.inst)) return true;
  return decode_condition(d);
}

bool decode_math(Decoder& d) {
  const uint32_t function = d(kFunction);
  if (function == 0 || function == 8) return d.refuse("unknown math function", function);
  d.inst.function = static_cast<uint8_t>(function);
  const auto fn = static_cast<MathFn>(function);
  const bool two = fn >= MathFn::kFdiv && fn <= MathFn::kInvm;
  if (fn == MathFn::kInvm || fn == MathFn::kRsqtm) d.inst.condition = Condition::kEo;
  return decode_alu(d, two ? 2 : 1);
}

bool decode_ternary_alu(Decoder& d) {
  d.inst.saturate = d(kSaturate);
  d.inst.write_acc = d.layout.low_bit_dst == 0 && d(kBit33);
  if (!decode_ternary(d)) return false;
  if (d.inst.op == Op::kBfn) {
    constexpr Condition conditions[] = {Condition::kNone, Condition::kEq, Condition::kGt,
                                        Condition::kLt};
    d.inst.function = static_cast<uint8_t>(d(kBfnHigh) << 4 | d(kBfnLow));
    d.inst.condition = conditions[d(kBfnCondition)];
    return true;
  }
  return decode_condition(d);
}

bool decode_branch(Decoder& d) {
  if (!d(kSourceImmediate[0])) return d.refuse("branch target in a register, opcode", d(kOpcode));
  d.inst.branch_ctrl = d(kBit33);
  d.inst.jip = static_cast<int32_t>(d(kImmediate));
  if (d(kSourceImmediate[1])) d.inst.uip = static_cast<int32_t>(d(kImmediateHigh));
  return true;
}

bool decode_call(Decoder& d) {
  Operand& dst = d.inst.dst;
  dst.type = Type::kD;
  dst.horizontal = 1;
  const uint32_t low_bit = d.layout.low_bit_dst != 0 ? d(d.layout.low_bit_dst) : 0;
  if (!set_register(d, dst, d(kDstGrf), d(kDstReg),
                    d(kDstSub) * d.layout.subregister_unit + low_bit)) {
    return false;
  }
  if (!d(kSourceImmediate[0])) return d.refuse("call target in a register, opcode", d(kOpcode));
  d.inst.jip = static_cast<int32_t>(d(kImmediate));
  return true;
}

bool decode_ret(Decoder& d) {
  Operand& src = d.inst.src[0];
  src.type = Type::kD;
  if (d(kSourceImmediate[0])) return d.refuse("return to an immediate, opcode", d(kOpcode));
  const int start = kSourceStart[0], low_bit = d.layout.low_bit_src;
  return set_register(
      d, src, d(start + kSrcGrf), d(at(kSrcReg, start)),
      d(at(kSrcSub, start)) * d.layout.subregister_unit + (low_bit != 0 ? d(start + low_bit) : 0));
}

bool decode_sync(Decoder& d) {
  const uint32_t function = d(kFunction);
  switch (static_cast<SyncFn>(function)) {
    case SyncFn::kNop:
    case SyncFn::kAllrd:
    case SyncFn::kAllwr:
    case SyncFn::kFence:
    case SyncFn::kBar:
    case SyncFn::kHost:
      break;
    default:
      return d.refuse("unknown sync function", function);
  }
  d.inst.function = static_cast<uint8_t>(function);
  Operand& src = d.inst.src[0];
  src.type = Type::kUD;
  if (d(kSourceImmediate[0])) {
    src.file = File::kImmediate;
    src.immediate = d(kImmediate);
    return true;
  }
  const int start = kSourceStart[0];
  src.type = Type::kUB;  // a barrier's id is the low byte
  if (!set_register(d, src, d(start + kSrcGrf), d(at(kSrcReg, start)), 0)) return false;
  return src.file == File::kNull || src.file == File::kFlag ||
         d.refuse("sync that waits for a register", d(at(kSrcReg, start)));
}

uint32_t gather(const Decoder& d, std::span<const FieldPart> parts) {
  uint32_t value = 0;
  for (const FieldPart& part : parts) value |= d(part.from) << part.to.low;
  return value;
}

bool decode_send(Decoder& d) {
  SendInfo& send = d.inst.send;
  send.sfid = static_cast<Sfid>(d(kFunction));
  send.end_of_thread = d(kEndOfThread);
  send.desc_in_a0 = d(kSendDescReg);
  send.exdesc_in_a0 = d(kSendExdescReg);
  send.desc = gather(d, kDesc);
  send.exdesc = gather(d, kExdesc);
  send.src1_length = static_cast<uint8_t>(d(kSendSrc1Length));
  if (send.exdesc_in_a0) {
    // in a ugm message of bmg the bit belongs to the immediate offset
    const bool offset = d.isa.xe2 && send.sfid == Sfid::kUgm;
    send.bss_offset = !offset && d(kSendExBso);
    send.exdesc_byte = static_cast<uint8_t>(4 * d(kSendExdescSub));
  }
  return set_register(d, d.inst.dst, d(kSendDstGrf), d(kSendDst), 0) &&
         set_register(d, d.inst.src[0], d(kSendSrc0Grf), d(kSendSrc0), 0) &&
         set_register(d, d.inst.src[1], d(kSendSrc1Grf), d(kSendSrc1), 0);
}

bool decode_format(Decoder& d, const OpcodeRow& row) {
  switch (row.format) {
    case Format::kNone:
      return true;
    case Format::kSync:
      return decode_sync(d);
    case Format::kBranch:
      return decode_branch(d);
    case Format::kCall:
      return decode_call(d);
    case Format::kRet:
      return decode_ret(d);
    case Format::kSend:
      return decode_send(d);
    case Format::kMath:
      return decode_math(d);
    case Format::kUnary:
    case Format::kBinary:
      return decode_alu(d, row.sources);
    case Format::kTernary:
      return decode_ternary_alu(d);
    case Format::kDpas:
      return decode_dpas(d);
  }
  return d.refuse("unknown format of opcode", row.code);
}

bool check_row(Decoder& d, const OpcodeRow& row) {
  const Inst& inst = d.inst;
  if ((row.lacks & kNoCondition) && inst.condition != Condition::kNone) {
    return d.refuse("condition of an operation that has none, opcode", row.code);
  }
  if ((row.lacks & kNoSaturate) && inst.saturate) {
    return d.refuse("saturation of an operation that has none, opcode", row.code);
  }
  if ((row.op == Op::kCsel || row.op == Op::kSync) && inst.predicate != Predicate::kNone) {
    return d.refuse("predicate of an operation that has none, opcode", row.code);
  }
  if (row.op == Op::kMath && d.isa.xe2 && (inst.dst.indirect || inst.src[0].indirect)) {
    return d.refuse("math with an indirect operand, function", inst.function);
  }
  for (const Operand& src : inst.src) {
    if ((row.lacks & kNoModifier) && (src.absolute || src.negate)) {
      return d.refuse("source modifier of an operation that has none, opcode", row.code);
    }
  }
  return true;
}

uint64_t load_qword(std::span<const uint8_t> code, size_t offset) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= uint64_t{code[offset + i]} << (8 * i);
  return value;
}

}  // namespace

bool decode(const Isa& isa, std::span<const uint8_t> code, uint32_t ip, Inst& inst,
            std::string& error) {
  inst = Inst{};
  inst.ip = ip;
  if (code.size() < 8) {
    error = "the code ends within an instruction";
    return false;
  }
  inst.bits[0] = load_qword(code, 0);
  Decoder d{isa, layout_of(isa.family), inst.bits, inst, error};
  if (d(kCompacted)) {
    inst.size = 8;
    if (!expand(isa, load_qword(code, 0), inst.bits)) {
      return d.refuse("compacted form that means nothing, opcode", d(kOpcode));
    }
  } else if (code.size() < 16) {
    error = "the code ends within an instruction";
    return false;
  } else {
    inst.bits[1] = load_qword(code, 8);
  }
  const OpcodeRow* row = row_at(d(kOpcode));
  const bool dg2 = isa.family == Family::kDg2;
  if (row == nullptr || (row->lacks & (dg2 ? kNotDg2 : kOnlyDg2)))
    return d.refuse("unknown opcode", d(kOpcode));
  inst.op = row->op;
  if (inst.op == Op::kIllegal || inst.op == Op::kNop) return true;  // the other bits mean nothing
  return decode_header(d) && decode_format(d, *row) && check_row(d, *row);
}

}  // namespace xesim
