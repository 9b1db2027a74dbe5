#include "insns/executor.hpp"

#include <array>

#include "insns/arithmetic.hpp"
#include "insns/dpas.hpp"
#include "insns/flow.hpp"
#include "insns/logic.hpp"
#include "insns/math.hpp"
#include "insns/move.hpp"
#include "insns/select.hpp"
#include "insns/wide_multiply.hpp"
#include "messages/send.hpp"

namespace xesim {
namespace {

void nothing(Thread&, const Inst&) {}

// A multiplication whose product the accumulator keeps whole, for a mach or macl to follow.
bool keeps_product(const Inst& inst) {
  return inst.dst.file == File::kAcc && !is_float(inst.dst.type) && type_bits(inst.dst.type) == 32;
}
Execute multiply_function(const Inst& inst) {
  if (has_float_source(inst)) return arithmetic_function<Mul, 2>(inst);
  return keeps_product(inst) ? mul_to_acc : integer_function<Mul, 2>(inst);
}
Execute mach_function(const Isa& isa, const Inst& inst) {
  // On dg2 a mach that does not write the accumulator gives the low half.
  return isa.family == Family::kDg2 && !inst.write_acc ? multiply_high<false> : multiply_high<true>;
}
// madm is fused multiply-add; the mme numbers only carry extra precision that the model does not
// need.
Execute madm_function(const Inst& inst) {
  if (any_fp64(inst)) return fp64_lanes<Mad, 3>;
  return float_lanes<Mad, 3>;
}

using Choose = Execute (*)(const Isa&, const Inst&);
struct Row {
  Op op;
  Choose choose;
};
constexpr Row kRows[] = {
    {Op::kNop, [](const Isa&, const Inst&) -> Execute { return nothing; }},
    {Op::kSync, [](const Isa&, const Inst&) -> Execute { return sync; }},
    {Op::kJmpi, [](const Isa&, const Inst&) -> Execute { return jmpi; }},
    {Op::kGoto, [](const Isa&, const Inst&) -> Execute { return goto_; }},
    {Op::kJoin, [](const Isa&, const Inst&) -> Execute { return join; }},
    {Op::kCall, [](const Isa&, const Inst&) -> Execute { return call; }},
    {Op::kRet, [](const Isa&, const Inst&) -> Execute { return ret; }},
    {Op::kSend, [](const Isa&, const Inst&) -> Execute { return execute_send; }},
    {Op::kSendc, [](const Isa&, const Inst&) -> Execute { return execute_send; }},
    {Op::kMath, [](const Isa&, const Inst& i) { return math_function(i); }},
    {Op::kDpas, [](const Isa& isa, const Inst& i) { return dpas_function(isa, i); }},
    {Op::kMov, [](const Isa&, const Inst& i) { return move_function(i); }},
    {Op::kSel, [](const Isa&, const Inst& i) { return select_function(i); }},
    {Op::kCsel, [](const Isa&, const Inst& i) { return conditional_select_function(i); }},
    {Op::kCmp, [](const Isa&, const Inst& i) { return compare_function(i); }},
    {Op::kAdd, [](const Isa&, const Inst& i) -> Execute { return arithmetic_function<Add, 2>(i); }},
    {Op::kMul, [](const Isa&, const Inst& i) { return multiply_function(i); }},
    {Op::kMad, [](const Isa&, const Inst& i) -> Execute { return arithmetic_function<Mad, 3>(i); }},
    {Op::kMadm, [](const Isa&, const Inst& i) { return madm_function(i); }},
    {Op::kAdd3, [](const Isa&, const Inst& i) -> Execute { return integer_function<Add3, 3>(i); }},
    {Op::kAvg,
     [](const Isa&, const Inst& i) -> Execute {
       return has_64bit(i) ? integer_lanes<Avg, 2, Int128> : integer_lanes<Avg, 2, int64_t>;
     }},
    {Op::kMac, [](const Isa&, const Inst&) -> Execute { return multiply_accumulate; }},
    {Op::kMach, [](const Isa& isa, const Inst& i) { return mach_function(isa, i); }},
    {Op::kMacl, [](const Isa&, const Inst&) -> Execute { return multiply_high<false>; }},
    {Op::kAddc, [](const Isa&, const Inst&) -> Execute { return with_carry<false>; }},
    {Op::kSubb, [](const Isa&, const Inst&) -> Execute { return with_carry<true>; }},
    {Op::kDp4a, [](const Isa&, const Inst&) -> Execute { return dot4; }},
    {Op::kAnd, [](const Isa&, const Inst&) -> Execute { return logic<And, 2>; }},
    {Op::kOr, [](const Isa&, const Inst&) -> Execute { return logic<Or, 2>; }},
    {Op::kXor, [](const Isa&, const Inst&) -> Execute { return logic<Xor, 2>; }},
    {Op::kNot, [](const Isa&, const Inst&) -> Execute { return logic<Not, 1>; }},
    {Op::kBfn, [](const Isa&, const Inst&) -> Execute { return boolean_function; }},
    {Op::kShl, [](const Isa&, const Inst& i) { return shift_function<Shift::kLeft>(i); }},
    {Op::kShr, [](const Isa&, const Inst& i) { return shift_function<Shift::kLogical>(i); }},
    {Op::kAsr, [](const Isa&, const Inst& i) { return shift_function<Shift::kArithmetic>(i); }},
    {Op::kRol, [](const Isa&, const Inst& i) { return shift_function<Shift::kRotateLeft>(i); }},
    {Op::kRor, [](const Isa&, const Inst& i) { return shift_function<Shift::kRotateRight>(i); }},
    {Op::kLzd, [](const Isa&, const Inst&) -> Execute { return bit_count<Bits::kLeadingZeros>; }},
    {Op::kFbh, [](const Isa&, const Inst&) -> Execute { return bit_count<Bits::kFirstHigh>; }},
    {Op::kFbl, [](const Isa&, const Inst&) -> Execute { return bit_count<Bits::kFirstLow>; }},
    {Op::kCbit, [](const Isa&, const Inst&) -> Execute { return bit_count<Bits::kCount>; }},
    {Op::kBfrev, [](const Isa&, const Inst&) -> Execute { return bit_count<Bits::kReverse>; }},
    {Op::kBfe, [](const Isa&, const Inst&) -> Execute { return bit_field_extract; }},
    {Op::kBfi1, [](const Isa&, const Inst&) -> Execute { return bit_field_mask; }},
    {Op::kBfi2, [](const Isa&, const Inst&) -> Execute { return bit_field_insert; }},
    {Op::kFrc, [](const Isa&, const Inst&) -> Execute { return round<Round::kFraction>; }},
    {Op::kRndd, [](const Isa&, const Inst&) -> Execute { return round<Round::kDown>; }},
    {Op::kRndu, [](const Isa&, const Inst&) -> Execute { return round<Round::kUp>; }},
    {Op::kRnde, [](const Isa&, const Inst&) -> Execute { return round<Round::kEven>; }},
    {Op::kRndz, [](const Isa&, const Inst&) -> Execute { return round<Round::kZero>; }},
};

}  // namespace

Execute executor_of(const Isa& isa, const Inst& inst) {
  static const auto by_op = [] {
    std::array<Choose, static_cast<size_t>(Op::kCount)> table{};
    for (const Row& row : kRows) table[static_cast<size_t>(row.op)] = row.choose;
    return table;
  }();
  const Choose choose = by_op[static_cast<size_t>(inst.op)];
  if (choose == nullptr) fail("the instruction %s is not implemented", row_of(inst.op).name);
  const auto needs = [&](bool has, auto belongs, const char* what) {
    if (has) return;
    const auto refuse = [&](const Operand& o) {
      if (o.file != File::kNone && o.file != File::kNull && belongs(o.type))
        fail("%s has no %s operands", isa.name, what);
    };
    refuse(inst.dst);
    for (const Operand& o : inst.src) refuse(o);
  };
  if (inst.op != Op::kSend && inst.op != Op::kSendc) {
    needs(isa.has_fp64, [](Type type) { return type == Type::kDF; }, "64-bit float");
    if (inst.op != Op::kMov)
      needs(
          isa.has_int64, [](Type type) { return type == Type::kQ || type == Type::kUQ; },
          "64-bit integer");
  }
  return choose(isa, inst);
}

}  // namespace xesim
