// Atomic operations: the old value goes to the destination. Groups run on several host threads, so
// global memory is changed by compare-exchange; SLM belongs to one host thread.
#include <immintrin.h>

#include <bit>
#include <cfenv>
#include <type_traits>

#include "messages/memory_access.hpp"

namespace xesim {
namespace {

// Bits of an element as a float wide enough to compute in: float for fp16 (a sum rounded to 24 and
// then to 11 bits is correctly rounded, since 24 >= 2 * 11 + 2).
template <class Bits>
auto to_float(Bits bits) {
  if constexpr (sizeof(Bits) == 2)
    return _cvtsh_ss(bits);
  else if constexpr (sizeof(Bits) == 4)
    return std::bit_cast<float>(bits);
  else
    return std::bit_cast<double>(bits);
}

template <class Bits, class Float>
Bits from_float(Float value) {
  if constexpr (sizeof(Bits) == 2)
    return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
  else
    return std::bit_cast<Bits>(value);
}

// The atomic units round to nearest whatever mode the thread has set.
class RoundToNearest {
 public:
  RoundToNearest() : mode_(std::fegetround()) {
    if (mode_ != FE_TONEAREST) std::fesetround(FE_TONEAREST);
  }
  ~RoundToNearest() {
    if (mode_ != FE_TONEAREST) std::fesetround(mode_);
  }

 private:
  const int mode_;
};

template <class Bits>
Bits combine(LscOp op, Bits old, Bits a, Bits b) {
  using Signed = std::make_signed_t<Bits>;
  const auto x = static_cast<Signed>(old), y = static_cast<Signed>(a);
  switch (op) {
    case LscOp::kInc:
      return static_cast<Bits>(old + 1);
    case LscOp::kDec:
      return static_cast<Bits>(old - 1);
    case LscOp::kAtomicLoad:
      return old;
    case LscOp::kAtomicStore:
      return a;
    case LscOp::kAdd:
      return static_cast<Bits>(old + a);
    case LscOp::kSub:
      return static_cast<Bits>(old - a);
    case LscOp::kSmin:
      return x < y ? old : a;
    case LscOp::kSmax:
      return x > y ? old : a;
    case LscOp::kUmin:
      return old < a ? old : a;
    case LscOp::kUmax:
      return old > a ? old : a;
    case LscOp::kCas:
      return old == a ? b : old;
    case LscOp::kFadd:
      return from_float<Bits>(to_float(old) + to_float(a));
    case LscOp::kFsub:
      return from_float<Bits>(to_float(old) - to_float(a));
    case LscOp::kFmin:
      return to_float(old) < to_float(a) ? old : a;
    case LscOp::kFmax:
      return to_float(old) > to_float(a) ? old : a;
    case LscOp::kFcas:
      return to_float(old) == to_float(a) ? b : old;
    case LscOp::kAnd:
      return old & a;
    case LscOp::kOr:
      return old | a;
    case LscOp::kXor:
      return old ^ a;
    default:
      fail("atomic operation %d", static_cast<int>(op));
  }
}

int operands_of(LscOp op) {
  if (op == LscOp::kInc || op == LscOp::kDec || op == LscOp::kAtomicLoad) return 0;
  return op == LscOp::kCas || op == LscOp::kFcas ? 2 : 1;
}

template <class Bits>
Bits change(LscOp op, Bits* memory, Bits a, Bits b) {
  Bits old = __atomic_load_n(memory, __ATOMIC_SEQ_CST);
  if (op == LscOp::kAtomicLoad) return old;
  while (!__atomic_compare_exchange_n(memory, &old, combine(op, old, a, b), false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_SEQ_CST)) {
  }
  return old;
}

template <class Bits>
void run_on(const Message& m, MemoryAccess& memory) {
  Thread& thread = m.thread;
  const uint32_t stride = m.component_stride();
  const int operands = operands_of(m.op);
  const bool xe2 = m.isa().xe2;
  if (operands != 0) m.require_data(uint64_t{stride} * static_cast<uint64_t>(operands));
  if (m.has_dst) require_registers(m.dst, stride);
  Bits operand[32][2] = {}, results[32];
  bool defined[32];
  for (uint32_t left = m.lanes; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    const uint32_t element = static_cast<uint32_t>(lane * m.register_bytes);
    for (int i = 0; i < operands; ++i) {
      const uint32_t byte = m.data + static_cast<uint32_t>(i) * stride + element;
      thread.require_defined(byte, sizeof(Bits), "src1 (data)");
      operand[lane][i] = thread.read<Bits>(byte);
    }
    const uint64_t address = m.address_of(lane);
    if (((m.base + address) & (sizeof(Bits) - 1)) != 0) {
      fail("atomic operation at 0x%llx of lane %d: no multiple of its %d bytes",
           static_cast<unsigned long long>(m.base + address), lane, static_cast<int>(sizeof(Bits)));
    }
    memory.lane = lane;
    memory.reach(address, sizeof(Bits));
  }
  memory.tell();
  const Piece* piece = memory.pieces();
  for (uint32_t left = m.lanes; left != 0; left &= left - 1, ++piece) {
    const int lane = __builtin_ctz(left);
    uint8_t* at = piece->memory;
    results[lane] = change(m.op, reinterpret_cast<Bits*>(at), operand[lane][0], operand[lane][1]);
    defined[lane] = memory.defined(at, sizeof(Bits));
    if (m.op == LscOp::kAtomicStore) memory.define(at, sizeof(Bits));
  }
  if (!m.has_dst) return;
  // Sources are read before the destination is written, which may be the same register.
  for (uint32_t left = m.lanes; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    const uint32_t byte = m.dst + static_cast<uint32_t>(lane * m.register_bytes);
    if (m.register_bytes > static_cast<int>(sizeof(Bits))) {
      thread.write<uint32_t>(byte, 0);
      thread.define(byte, static_cast<uint32_t>(m.register_bytes), xe2);
    }
    thread.write<Bits>(byte, results[lane]);
    thread.define(byte, sizeof(Bits), defined[lane]);
  }
}

}  // namespace

void run_atomic(const Message& m) {
  if (m.lanes == 0) return;
  if (m.space == Space::kScratch || m.space == Space::kPayload) {
    unknown_message(m, "an atomic operation on scratch space or indirect data");
  }
  if (m.register_shift != 0) unknown_message(m, "an atomic operation with data size d16u32h");
  m.require_addresses();
  const bool is_float = m.op >= LscOp::kFadd && m.op <= LscOp::kFcas;
  RoundToNearest rounding;
  MemoryAccess memory(m, Traffic::kAtomic, Access::kAtomic);
  switch (m.memory_bytes) {
    case 2:
      return run_on<uint16_t>(m, memory);
    case 4:
      return run_on<uint32_t>(m, memory);
    case 8:
      if (is_float && !m.isa().has_fp64) unknown_message(m, "a double atomic operation");
      return run_on<uint64_t>(m, memory);
    default:
      unknown_message(m, "data size of an atomic operation");
  }
}

}  // namespace xesim
