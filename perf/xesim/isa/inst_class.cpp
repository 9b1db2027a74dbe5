#include "isa/inst_class.hpp"

namespace xesim {

bool has_float_source(const Inst& inst) {
  for (const Operand& o : inst.src) {
    if (o.file == File::kNone) continue;
    if (o.form == ImmediateForm::kVF || (o.form == ImmediateForm::kScalar && is_float(o.type)))
      return true;
  }
  return false;
}

InstClass class_of(const Inst& inst) {
  switch (inst.op) {
    case Op::kDpas:
    case Op::kDpasw:
      return InstClass::kDpas;
    case Op::kMath:
      return InstClass::kMath;
    case Op::kMov:
    case Op::kMovi:
      return InstClass::kMove;
    case Op::kSend:
    case Op::kSendc:
      return InstClass::kSend;
    case Op::kSync:
    case Op::kNop:
      return InstClass::kSync;
    default:
      break;
  }
  if (row_of(inst.op).format == Format::kBranch || inst.op == Op::kCall || inst.op == Op::kRet)
    return InstClass::kControl;
  return has_float_source(inst) ? InstClass::kFloat : InstClass::kInteger;
}

}  // namespace xesim
