// The tables of names: families, opcodes, types.
#include <array>
#include <cstddef>

#include "isa/decode_parts.hpp"
#include "isa/inst.hpp"

namespace xesim {
namespace {

constexpr Isa kIsa[] = {
    {Family::kDg2, "dg2", 32, 8, 2, 8, false, false, false, false, false},
    {Family::kPvc, "pvc", 64, 16, 4, 16, true, true, true, true, false},
    {Family::kBmg, "bmg", 64, 16, 4, 16, true, true, true, true, true},
    {Family::kPtl, "ptl", 64, 16, 4, 16, true, true, true, true, true},
};

// The index of a row is its Op. The number of sources of `math` depends on its function.
constexpr OpcodeRow kRows[] = {
    {0x00, Op::kIllegal, "illegal", Format::kNone, 0, 0},
    {0x01, Op::kSync, "sync", Format::kSync, 1, 0},
    {0x20, Op::kJmpi, "jmpi", Format::kBranch, 0, 0},
    {0x21, Op::kBrd, "brd", Format::kBranch, 0, 0},
    {0x22, Op::kIf, "if", Format::kBranch, 0, 0},
    {0x23, Op::kBrc, "brc", Format::kBranch, 0, 0},
    {0x24, Op::kElse, "else", Format::kBranch, 0, 0},
    {0x25, Op::kEndif, "endif", Format::kBranch, 0, 0},
    {0x27, Op::kWhile, "while", Format::kBranch, 0, 0},
    {0x28, Op::kBreak, "break", Format::kBranch, 0, 0},
    {0x29, Op::kCont, "cont", Format::kBranch, 0, 0},
    {0x2A, Op::kHalt, "halt", Format::kBranch, 0, 0},
    {0x2B, Op::kCalla, "calla", Format::kCall, 0, 0},
    {0x2C, Op::kCall, "call", Format::kCall, 0, 0},
    {0x2D, Op::kRet, "ret", Format::kRet, 1, 0},
    {0x2E, Op::kGoto, "goto", Format::kBranch, 0, 0},
    {0x2F, Op::kJoin, "join", Format::kBranch, 0, 0},
    {0x31, Op::kSend, "send", Format::kSend, 2, 0},
    {0x32, Op::kSendc, "sendc", Format::kSend, 2, 0},
    {0x38, Op::kMath, "math", Format::kMath, 2, 0},
    {0x40, Op::kAdd, "add", Format::kBinary, 2, 0},
    {0x41, Op::kMul, "mul", Format::kBinary, 2, 0},
    {0x42, Op::kAvg, "avg", Format::kBinary, 2, 0},
    {0x43, Op::kFrc, "frc", Format::kUnary, 1, kNoSaturate},
    {0x44, Op::kRndu, "rndu", Format::kUnary, 1, 0},
    {0x45, Op::kRndd, "rndd", Format::kUnary, 1, 0},
    {0x46, Op::kRnde, "rnde", Format::kUnary, 1, 0},
    {0x47, Op::kRndz, "rndz", Format::kUnary, 1, 0},
    {0x48, Op::kMac, "mac", Format::kBinary, 2, 0},
    {0x49, Op::kMach, "mach", Format::kBinary, 2, kNoCondition | kNoSaturate},
    {0x4A, Op::kLzd, "lzd", Format::kUnary, 1, kNoSaturate},
    {0x4B, Op::kFbh, "fbh", Format::kUnary, 1, kNoCondition | kNoModifier | kNoSaturate},
    {0x4C, Op::kFbl, "fbl", Format::kUnary, 1, kNoCondition | kNoModifier | kNoSaturate},
    {0x4D, Op::kCbit, "cbit", Format::kUnary, 1, kNoCondition | kNoModifier | kNoSaturate},
    {0x4E, Op::kAddc, "addc", Format::kBinary, 2, kNoModifier | kNoSaturate},
    {0x4F, Op::kSubb, "subb", Format::kBinary, 2, kNoModifier},
    {0x52, Op::kAdd3, "add3", Format::kTernary, 3, 0},
    {0x53, Op::kMacl, "macl", Format::kBinary, 2, kNoCondition | kNoSaturate | kNotDg2},
    {0x54, Op::kSrnd, "srnd", Format::kBinary, 2,
     kNoCondition | kNoModifier | kNoSaturate | kNotDg2},
    {0x58, Op::kDp4a, "dp4a", Format::kTernary, 3, kNoModifier},
    {0x59, Op::kDpas, "dpas", Format::kDpas, 3, 0},
    {0x5A, Op::kDpasw, "dpasw", Format::kDpas, 3, kOnlyDg2},
    {0x5B, Op::kMad, "mad", Format::kTernary, 3, 0},
    {0x5D, Op::kMadm, "madm", Format::kTernary, 3, kNoSaturate},
    {0x60, Op::kNop, "nop", Format::kNone, 0, 0},
    {0x61, Op::kMov, "mov", Format::kUnary, 1, 0},
    {0x62, Op::kSel, "sel", Format::kBinary, 2, 0},
    {0x63, Op::kMovi, "movi", Format::kBinary, 2, kNoCondition},
    {0x64, Op::kNot, "not", Format::kUnary, 1, kNoSaturate},
    {0x65, Op::kAnd, "and", Format::kBinary, 2, kNoSaturate},
    {0x66, Op::kOr, "or", Format::kBinary, 2, kNoSaturate},
    {0x67, Op::kXor, "xor", Format::kBinary, 2, kNoSaturate},
    {0x68, Op::kShr, "shr", Format::kBinary, 2, 0},
    {0x69, Op::kShl, "shl", Format::kBinary, 2, 0},
    {0x6B, Op::kBfn, "bfn", Format::kTernary, 3, kNoModifier | kNoSaturate},
    {0x6C, Op::kAsr, "asr", Format::kBinary, 2, 0},
    {0x6E, Op::kRor, "ror", Format::kBinary, 2, kNoModifier | kNoSaturate},
    {0x6F, Op::kRol, "rol", Format::kBinary, 2, kNoModifier | kNoSaturate},
    {0x70, Op::kCmp, "cmp", Format::kBinary, 2, kNoSaturate},
    {0x71, Op::kCmpn, "cmpn", Format::kBinary, 2, kNoSaturate},
    {0x72, Op::kCsel, "csel", Format::kTernary, 3, 0},
    {0x77, Op::kBfrev, "bfrev", Format::kUnary, 1, kNoCondition | kNoModifier | kNoSaturate},
    {0x78, Op::kBfe, "bfe", Format::kTernary, 3, kNoModifier | kNoSaturate},
    {0x79, Op::kBfi1, "bfi1", Format::kBinary, 2, kNoCondition | kNoModifier | kNoSaturate},
    {0x7A, Op::kBfi2, "bfi2", Format::kTernary, 3, kNoModifier | kNoSaturate},
};

constexpr bool rows_follow_op() {
  if (std::size(kRows) != static_cast<size_t>(Op::kCount)) return false;
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (kRows[i].op != static_cast<Op>(i)) return false;
    for (size_t j = 0; j < i; ++j) {
      if (kRows[i].code == kRows[j].code) return false;
    }
  }
  return true;
}
static_assert(rows_follow_op(), "one row per opcode, in the order of Op, no code twice");

constexpr std::array<const OpcodeRow*, 128> kByCode = [] {
  std::array<const OpcodeRow*, 128> by_code{};
  for (const OpcodeRow& row : kRows) by_code[row.code] = &row;
  return by_code;
}();

constexpr std::string_view kTypeNames[] = {"ub", "uw",  "ud", "uq", "b",   "w",  "d",
                                           "q",  "bf8", "hf", "f",  "df",  "bf", "tf32",
                                           "u4", "s4",  "u2", "s2", "none"};

}  // namespace

const Isa& isa_of(Family family) { return kIsa[static_cast<int>(family)]; }
std::span<const OpcodeRow> opcode_table() { return kRows; }
const OpcodeRow& row_of(Op op) { return kRows[static_cast<int>(op)]; }
const OpcodeRow* row_at(uint32_t code) { return kByCode[code & 127]; }
std::string_view type_name(Type type) { return kTypeNames[static_cast<int>(type)]; }

}  // namespace xesim
