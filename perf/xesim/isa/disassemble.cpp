// Inst -> one line in IGA's style.
#include <bit>

#include "isa/inst.hpp"
#include "isa/scoreboard.hpp"
#include "isa/text.hpp"

namespace xesim {
namespace {

// Elements of an operand's type per subregister; packed types count their own elements.
std::string subregister_text(const Operand& operand) {
  const int bits = type_bits(operand.type);
  return bits == 0 ? std::string() : format(".%d", operand.subregister * 8 / bits);
}

std::string register_text(const Operand& operand) {
  if (operand.file == File::kNull) return "null";
  if (operand.indirect) {
    return operand.offset == 0 ? format("r[a0.%d]", operand.address)
                               : format("r[a0.%d,%d]", operand.address, operand.offset);
  }
  return std::string(file_name(operand.file)) +
         (operand.file == File::kIp ? "" : std::to_string(operand.number));
}

std::string immediate_text(const Operand& operand) {
  const uint64_t bits = operand.immediate;
  if (operand.form == ImmediateForm::kV) return format("0x%08x:v", static_cast<uint32_t>(bits));
  if (operand.form == ImmediateForm::kUV) return format("0x%08x:uv", static_cast<uint32_t>(bits));
  if (operand.form == ImmediateForm::kVF) return format("0x%08x:vf", static_cast<uint32_t>(bits));
  const std::string type(type_name(operand.type));
  switch (operand.type) {
    case Type::kF:
      return format("%.9g:f", std::bit_cast<float>(static_cast<uint32_t>(bits)));
    case Type::kDF:
      return format("%.17g:df", std::bit_cast<double>(bits));
    case Type::kB:
    case Type::kW:
      return format("%d:", static_cast<int16_t>(bits)) + type;
    case Type::kD:
      return format("%d:d", static_cast<int32_t>(bits));
    case Type::kQ:
      return format("%lld:q", static_cast<long long>(bits));
    default:
      return format("0x%llx:", static_cast<unsigned long long>(bits)) + type;
  }
}

std::string typed_register(const Operand& operand) {
  std::string text = register_text(operand);
  if (operand.macro < 8)
    text += format(".mme%d", operand.macro);
  else if (!operand.indirect && operand.file != File::kNull)
    text += subregister_text(operand);
  return text;
}

std::string dst_text(const Inst& inst) {
  const Operand& dst = inst.dst;
  std::string text = inst.saturate ? "(sat)" : "";
  text += typed_register(dst);
  if (row_of(inst.op).format != Format::kDpas && dst.macro == 8)
    text += format("<%d>", dst.horizontal);
  return text + ":" + std::string(type_name(dst.type));
}

std::string region_text(const Operand& src, bool ternary, bool last) {
  if (src.vxh) return format("<%d,%d>", src.width, src.horizontal);
  if (ternary && last) return format("<%d>", src.vertical);
  if (ternary) return format("<%d;%d>", src.vertical, src.horizontal);
  return format("<%d;%d,%d>", src.vertical, src.width, src.horizontal);
}

std::string source_text(const Inst& inst, int index) {
  const Operand& src = inst.src[index];
  if (src.file == File::kImmediate) return immediate_text(src);
  const Format kind = row_of(inst.op).format;
  std::string text = src.negate ? "-" : "";
  if (src.absolute) text += "(abs)";
  text += typed_register(src);
  if (kind != Format::kDpas && src.macro == 8)
    text += region_text(src, kind == Format::kTernary, index == 2);
  return text + ":" + std::string(type_name(src.type));
}

std::string prefix_text(const Inst& inst) {
  std::string flag;
  if (inst.predicate != Predicate::kNone) {
    flag = format("%sf%d.%d%s", inst.predicate_inverse ? "~" : "", inst.flag / 2, inst.flag % 2,
                  std::string(predicate_suffix(inst.predicate)).c_str());
  }
  if (inst.no_mask) return flag.empty() ? "(W) " : "(W&" + flag + ") ";
  return flag.empty() ? "" : "(" + flag + ") ";
}

std::string name_text(const Inst& inst) {
  const std::string name = row_of(inst.op).name;
  switch (inst.op) {
    case Op::kMath:
      return name + "." + std::string(math_name(static_cast<MathFn>(inst.function)));
    case Op::kSync:
      return name + "." + std::string(sync_name(static_cast<SyncFn>(inst.function)));
    case Op::kBfn:
      return name + format(".0x%02x", inst.function);
    case Op::kSend:
    case Op::kSendc:
      return name + "." + std::string(sfid_name(inst.send.sfid));
    case Op::kDpas:
    case Op::kDpasw:
      return name + format(".%dx%d", inst.systolic_depth, inst.repeat_count);
    case Op::kGoto:
      return inst.branch_ctrl ? name + ".b" : name;
    default:
      return name;
  }
}

std::string operands_text(const Isa& isa, const Inst& inst) {
  std::string text;
  switch (row_of(inst.op).format) {
    case Format::kNone:
      return text;
    case Format::kSync:
      return inst.src[0].file == File::kImmediate
                 ? format(" 0x%x", static_cast<uint32_t>(inst.src[0].immediate))
                 : " " + register_text(inst.src[0]);
    case Format::kCall:
      return " " + typed_register(inst.dst) + format(" 0x%x", inst.ip + inst.jip);
    case Format::kRet:
      return " " + typed_register(inst.src[0]);
    case Format::kBranch:
      text = format(" 0x%x", inst.ip + inst.jip);
      return inst.uip != 0 ? text + format(" 0x%x", inst.ip + inst.uip) : text;
    case Format::kSend:
      return " " + send_text(isa, inst);
    default:
      break;
  }
  text = " " + dst_text(inst);
  for (int i = 0; i < 3; ++i) {
    if (inst.src[i].file != File::kNone) text += " " + source_text(inst, i);
  }
  return text;
}

std::string options_text(const Isa& isa, const Inst& inst) {
  std::string text;
  auto add = [&](const char* word) { text += (text.empty() ? " {" : ",") + std::string(word); };
  if (inst.write_acc) add("AccWrEn");
  if (inst.atomic) add("Atomic");
  if (inst.size == 8) add("Compacted");
  if (inst.send.end_of_thread) add("EOT");
  if (const std::string waits = to_string(scoreboard_of(isa, inst)); !waits.empty())
    add(waits.c_str());
  return text.empty() ? text : text + "}";
}

}  // namespace

std::string disassemble(const Isa& isa, const Inst& inst) {
  if (inst.op == Op::kNop || inst.op == Op::kIllegal) return row_of(inst.op).name;
  std::string text = prefix_text(inst) + name_text(inst);
  if (row_of(inst.op).format != Format::kSync)
    text += format(" (%d|M%d)", inst.exec_size, inst.channel_offset);
  if (inst.condition != Condition::kNone) {
    text += format(" (%s)", std::string(condition_name(inst.condition)).c_str());
    if (inst.op != Op::kSel && inst.op != Op::kCsel)
      text += format("f%d.%d", inst.flag / 2, inst.flag % 2);
  }
  text += operands_text(isa, inst) + options_text(isa, inst);
  if (row_of(inst.op).format != Format::kSend) return text;
  const std::string message = message_text(inst.send);
  return message.empty() ? text : text + " // " + message;
}

}  // namespace xesim
