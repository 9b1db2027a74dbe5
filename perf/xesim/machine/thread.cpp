#include "machine/thread.hpp"

namespace xesim {
namespace {

// Group width of the any/all forms, 0 for the whole instruction.
int predicate_group(Predicate p) {
  switch (p) {
    case Predicate::kAny2:
    case Predicate::kAll2:
      return 2;
    case Predicate::kAny4:
    case Predicate::kAll4:
      return 4;
    case Predicate::kAny8:
    case Predicate::kAll8:
      return 8;
    case Predicate::kAny16:
    case Predicate::kAll16:
      return 16;
    case Predicate::kAny32:
    case Predicate::kAll32:
      return 32;
    default:
      return 0;
  }
}
bool needs_all(Predicate p) {
  switch (p) {
    case Predicate::kAll:
    case Predicate::kAllV:
    case Predicate::kAll2:
    case Predicate::kAll4:
    case Predicate::kAll8:
    case Predicate::kAll16:
    case Predicate::kAll32:
      return true;
    default:
      return false;
  }
}

uint32_t predicate_lanes(const Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  // f.0 and f.1 with lane offsets beyond 16 bits run on into the next half; a register has 32 bits.
  const int first = 16 * (inst.flag & 1) + inst.channel_offset;
  const uint32_t flag = t.flag[inst.flag >> 1];
  const uint32_t bits = first < 32 ? flag >> first : 0;
  uint32_t lanes = bits & all_lanes(n);
  if (inst.predicate != Predicate::kLane) {
    const Predicate p = inst.predicate;
    if (p == Predicate::kAnyV || p == Predicate::kAllV)
      fail("the predicate forms anyv and allv are not implemented");
    const int group = predicate_group(p) == 0 ? n : predicate_group(p);
    lanes = 0;
    for (int start = 0; start < n; start += group) {
      // Groups are aligned in the flag register.
      const int base = first / group * group + start;
      const uint32_t window = (group >= 32 ? flag : flag >> (base & 31)) & all_lanes(group);
      const bool holds = needs_all(p) ? window == all_lanes(group) : window != 0;
      if (holds) lanes |= all_lanes(group) << start;
    }
    if (predicate_group(p) == 0) {
      const uint32_t window = bits & all_lanes(n);
      lanes = (needs_all(p) ? window == all_lanes(n) : window != 0) ? all_lanes(n) : 0;
    }
    lanes &= all_lanes(n);
  }
  return inst.predicate_inverse ? ~lanes & all_lanes(n) : lanes;
}

}  // namespace

uint32_t Thread::active_lanes(const Inst& inst) const {
  uint32_t lanes = all_lanes(inst.exec_size);
  if (!inst.no_mask) lanes &= execution_mask >> inst.channel_offset;
  if (inst.predicate != Predicate::kNone) lanes &= predicate_lanes(*this, inst);
  return lanes;
}

uint32_t Thread::defined_predicate(const Inst& inst) const {
  if (inst.predicate == Predicate::kNone) return ~0u;
  const int first = 16 * (inst.flag & 1) + inst.channel_offset;
  const uint32_t defined_bits = flag_defined[inst.flag >> 1];
  if (inst.predicate == Predicate::kLane) return first < 32 ? defined_bits >> first : 0;
  const uint32_t need = first < 32 ? all_lanes(inst.exec_size) << first : 0;
  return (defined_bits & need) == need ? ~0u : 0;
}

void Thread::undefined_register(uint32_t byte, uint32_t count, const char* operand) const {
  const int g = launch->isa->grf_bytes;
  for (uint32_t i = byte; i < byte + count; ++i) {
    if (!grf_defined.test(i, 1)) {
      fail("%s reads r%d byte %d, which was never given a value", operand, static_cast<int>(i) / g,
           static_cast<int>(i) % g);
    }
  }
  fail("%s reads a register that was never given a value", operand);
}

}  // namespace xesim
