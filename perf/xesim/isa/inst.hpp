// One decoded instruction of Xe machine code: what decode() fills, the executor runs, disassemble()
// prints. Nothing here depends on a running thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace xesim {

enum class Family : uint8_t { kDg2, kPvc, kBmg, kPtl };  // Xe-HPG, Xe-HPC, Xe2, Xe3
inline constexpr Family kFamilies[] = {Family::kDg2, Family::kPvc, Family::kBmg, Family::kPtl};

// What differs between the families where instructions are concerned.
struct Isa {
  Family family;
  const char* name;    // "dg2", "pvc", "bmg", "ptl"
  int grf_bytes;       // bytes of one register: 32 or 64
  int dpas_lanes;      // N of a dpas, and lanes of a native SIMD instruction: 8 or 16
  int flag_registers;  // f0 .. f(n-1), of 32 bits
  int accumulators;    // acc0 .. acc(n-1), of grf_bytes each
  bool has_block2d;    // 2D block messages
  bool has_named_barriers;
  bool has_int64;  // q, uq operands
  bool has_fp64;   // df operands
  bool xe2;        // Xe2 and what followed it: messages, scratch memory, barriers of their own
};
const Isa& isa_of(Family family);

enum class Type : uint8_t {
  kUB,
  kUW,
  kUD,
  kUQ,
  kB,
  kW,
  kD,
  kQ,  // integers
  kBF8,
  kHF,
  kF,
  kDF,
  kBF,
  kTF32,  // floats; bf8 is e5m2
  kU4,
  kS4,
  kU2,
  kS2,  // packed operands of a dpas
  kNone
};
constexpr int type_bits(Type t) {
  constexpr uint8_t bits[] = {8, 16, 32, 64, 8, 16, 32, 64, 8, 16, 32, 64, 16, 32, 4, 4, 2, 2, 0};
  return bits[static_cast<int>(t)];
}
constexpr int type_bytes(Type t) { return type_bits(t) / 8; }
constexpr bool is_float(Type t) { return t >= Type::kBF8 && t <= Type::kTF32; }
constexpr bool is_signed(Type t) {
  return (t >= Type::kB && t <= Type::kQ) || t == Type::kS4 || t == Type::kS2;
}

enum class Op : uint8_t {
  kIllegal,
  kSync,
  kJmpi,
  kBrd,
  kIf,
  kBrc,
  kElse,
  kEndif,
  kWhile,
  kBreak,
  kCont,
  kHalt,
  kCalla,
  kCall,
  kRet,
  kGoto,
  kJoin,
  kSend,
  kSendc,
  kMath,
  kAdd,
  kMul,
  kAvg,
  kFrc,
  kRndu,
  kRndd,
  kRnde,
  kRndz,
  kMac,
  kMach,
  kLzd,
  kFbh,
  kFbl,
  kCbit,
  kAddc,
  kSubb,
  kAdd3,
  kMacl,
  kSrnd,
  kDp4a,
  kDpas,
  kDpasw,
  kMad,
  kMadm,
  kNop,
  kMov,
  kSel,
  kMovi,
  kNot,
  kAnd,
  kOr,
  kXor,
  kShr,
  kShl,
  kBfn,
  kAsr,
  kRor,
  kRol,
  kCmp,
  kCmpn,
  kCsel,
  kBfrev,
  kBfe,
  kBfi1,
  kBfi2,
  kCount
};

enum class File : uint8_t {
  kNone,  // the operand does not exist
  kNull,
  kGrf,
  kAcc,
  kAddress,
  kFlag,
  kCe,
  kMsg,
  kSp,
  kSr,
  kCr,
  kN,
  kIp,
  kTdr,
  kTm,
  kFc,
  kDbg,
  kImmediate
};

enum class ImmediateForm : uint8_t { kScalar, kV, kUV, kVF };

struct Operand {
  File file = File::kNone;
  Type type = Type::kNone;
  ImmediateForm form = ImmediateForm::kScalar;
  bool indirect = false;  // r[a0.k, offset]
  bool vxh = false;       // indirect with one address per `width` elements (no vertical stride)
  bool absolute = false, negate = false;
  uint8_t vertical = 0, width = 1,
          horizontal = 0;  // region, in elements; a destination has horizontal only
  uint8_t number = 0;      // register number: r12 -> 12, acc2 -> 2
  uint8_t subregister =
      0;  // in bytes (flags: 0 or 2; packed dpas types: the byte that holds the element)
  uint8_t macro = 8;       // math macros: the mme number, 8 = none
  uint8_t address = 0;     // indirect: k of a0.k (16-bit units)
  int16_t offset = 0;      // indirect: bytes
  uint32_t byte = 0;       // direct: byte offset in its file (grf, acc: number * grf_bytes +
                           // subregister; flag, address, cr, sr: number * 4 or 0, + subregister)
  uint64_t immediate = 0;  // zero-extended bits; v, uv, vf: the packed 32 bits

  bool exists() const { return file != File::kNone && file != File::kNull; }
};

enum class Condition : uint8_t { kNone, kEq, kNe, kGt, kGe, kLt, kLe, kOv = 8, kUn = 9, kEo = 15 };

enum class Predicate : uint8_t {
  kNone,
  kLane,  // every lane its own flag bit
  kAny,
  kAll,  // pvc, bmg: over the whole width
  kAnyV,
  kAllV,
  kAny2,
  kAll2,
  kAny4,
  kAll4,
  kAny8,
  kAll8,
  kAny16,
  kAll16,
  kAny32,
  kAll32  // dg2: groups
};

enum class MathFn : uint8_t {
  kInv = 1,
  kLog,
  kExp,
  kSqt,
  kRsqt,
  kSin,
  kCos,
  kFdiv = 9,
  kPow,
  kIdiv,
  kIqot,
  kIrem,
  kInvm,
  kRsqtm
};
enum class SyncFn : uint8_t {
  kNop = 0,
  kAllrd = 2,
  kAllwr = 3,
  kFence = 13,
  kBar = 14,
  kHost = 15
};
enum class Sfid : uint8_t {
  kNull,
  kUgml,
  kSampler,
  kGateway,
  kDc2,
  kRc,
  kUrb,
  kTs,
  kVme,
  kDcro,
  kDc0,
  kPixi,
  kDc1,
  kTgm,
  kSlm,
  kUgm
};

// A send's own fields. The registers are dst, src[0] (addresses) and src[1] (data) of the
// instruction.
struct SendInfo {
  Sfid sfid = Sfid::kNull;
  bool end_of_thread = false;
  bool desc_in_a0 = false;    // the descriptor is the dword a0.0
  bool exdesc_in_a0 = false;  // the extended descriptor is the dword at byte exdesc_byte of a0
  bool bss_offset = false;    // ExBSO
  uint8_t exdesc_byte = 0;
  uint8_t src1_length = 0;  // registers of data
  uint32_t desc = 0;        // the immediates as encoded, meaningful bits stay even when in a0
  uint32_t exdesc = 0;
};

struct Inst {
  Op op = Op::kIllegal;
  uint8_t size = 16;  // bytes: 8 when compacted
  uint8_t exec_size = 1;
  uint8_t channel_offset = 0;  // first lane of masks and flags
  bool no_mask = false;        // (W)
  bool saturate = false;
  bool write_acc = false;  // AccWrEn
  bool atomic = false;
  bool branch_ctrl = false;  // goto.b
  Predicate predicate = Predicate::kNone;
  bool predicate_inverse = false;
  uint8_t flag = 0;  // 2 * register + subregister: flag bits start at bit 16 * flag
  Condition condition = Condition::kNone;
  uint8_t function = 0;                          // math: MathFn; sync: SyncFn; bfn: the table
  uint8_t systolic_depth = 0, repeat_count = 0;  // dpas
  uint16_t swsb = 0;                             // raw scoreboard field
  uint32_t ip = 0;                               // byte offset in the kernel
  int32_t jip = 0, uip = 0;  // branches: bytes from the start of this instruction
  Operand dst;
  std::array<Operand, 3> src;
  SendInfo send;
  std::array<uint64_t, 2> bits{};  // as encoded, expanded if it was compacted
};

// One row per opcode: drives decode, disassembly and dispatch.
enum class Format : uint8_t {
  kNone,
  kUnary,
  kBinary,
  kTernary,
  kMath,
  kDpas,
  kSend,
  kBranch,
  kCall,
  kRet,
  kSync
};
struct OpcodeRow {
  uint8_t code;
  Op op;
  const char* name;
  Format format;
  uint8_t sources;  // math: at most
  uint8_t lacks;    // sum of Lacks
};
// What the encoding has room for and the operation does not know, or the family does not have.
enum Lacks : uint8_t {
  kNoCondition = 1,
  kNoModifier = 2,
  kNoSaturate = 4,
  kNotDg2 = 8,
  kOnlyDg2 = 16
};
std::span<const OpcodeRow> opcode_table();
const OpcodeRow& row_of(Op op);

// Decodes one instruction at `code` (at least 8 bytes; 16 unless compacted). Returns false and says
// why in `error` when the bits are no instruction of this family; `inst.size` and `inst.bits` are
// set all the same.
bool decode(const Isa& isa, std::span<const uint8_t> code, uint32_t ip, Inst& inst,
            std::string& error);

// Expands the 8 bytes of a compacted instruction to its full 128 bits; false if an index has no
// meaning.
bool expand(const Isa& isa, uint64_t compacted, std::array<uint64_t, 2>& bits);

// One line of assembly in IGA's style, as messages about a launch show it.
std::string disassemble(const Isa& isa, const Inst& inst);
std::string_view type_name(Type type);

}  // namespace xesim
