// What all instructions that compute a value per lane have in common.
#pragma once

#include "insns/lanes.hpp"
#include "isa/inst_class.hpp"
#include "machine/program.hpp"

namespace xesim {

template <int kSources>
uint32_t sources_defined(const Thread& t, const Inst& inst) {
  if (!t.track) return ~0u;
  uint32_t defined = t.defined_predicate(inst);
  for (int i = 0; i < kSources; ++i) {
    defined &= defined_lanes(t, inst.src[static_cast<size_t>(i)], inst.exec_size);
  }
  return defined;
}

// x op x does not depend on x: compilers make masks of `cmp r, r` and zeros of `xor r, r` from any
// register.
inline bool same_integers(const Inst& inst) {
  const Operand &a = inst.src[0], &b = inst.src[1];
  return a.file == b.file && !a.indirect && !b.indirect && a.byte == b.byte && a.type == b.type &&
         !is_float(a.type) && a.vertical == b.vertical && a.width == b.width &&
         a.horizontal == b.horizontal && a.negate == b.negate && a.absolute == b.absolute;
}

inline bool has_64bit(const Inst& inst) {
  const auto wide = [](const Operand& o) {
    return o.file != File::kNone && o.file != File::kNull && type_bits(o.type) == 64;
  };
  return wide(inst.dst) || wide(inst.src[0]) || wide(inst.src[1]) || wide(inst.src[2]);
}

// The result of integer arithmetic, and its condition, which sees it before it is narrowed.
template <class T>
void finish_integers(Thread& t, const Inst& inst, const Lanes<T>& value, uint32_t active,
                     uint32_t defined) {
  write_integers(t, inst, value, active, defined);
  if (inst.condition != Condition::kNone) {
    const Lanes<T> zero{};
    write_flag(t, inst, compare_lanes(inst.condition, value, zero, inst.exec_size), active,
               defined);
  }
}

// The result of float arithmetic that was computed to odd; a condition sees the rounded value.
inline void finish_doubles(Thread& t, const Inst& inst, Lanes<double>& value, uint32_t active,
                           uint32_t defined) {
  write_doubles(t, inst, value, active, defined);
  if (inst.condition != Condition::kNone) {
    if (is_float(inst.dst.type)) {
      for (int i = 0; i < inst.exec_size; ++i) {
        value[i] =
            decode_float(encode_float(value[i], inst.dst.type, rounding_of(t)), inst.dst.type);
      }
    }
    const Lanes<double> zero{};
    write_flag(t, inst, compare_lanes(inst.condition, value, zero, inst.exec_size), active,
               defined);
  }
}
inline void finish_floats(Thread& t, const Inst& inst, Lanes<float>& value, uint32_t active,
                          uint32_t defined) {
  if (inst.saturate)
    for (int i = 0; i < inst.exec_size; ++i)
      value[i] = value[i] > 0 ? std::min(value[i], 1.0f) : 0.0f;
  Lanes<uint32_t> bits;
  std::memcpy(bits.v, value.v, sizeof(float) * inst.exec_size);
  write_bits(t, inst, bits, active, defined);
  if (inst.condition != Condition::kNone) {
    const Lanes<float> zero{};
    write_flag(t, inst, compare_lanes(inst.condition, value, zero, inst.exec_size), active,
               defined);
  }
}

}  // namespace xesim
