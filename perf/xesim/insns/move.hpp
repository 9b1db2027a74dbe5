// mov in its kinds: raw copies, conversions, and rounding to integral values.
#pragma once

#include <immintrin.h>

#include "insns/common.hpp"

namespace xesim {

// Same type, no modifier: bits, whatever they mean. Compilers also copy registers in wider pieces
// than were written to them, so each byte of a copy is as defined as it was.
template <class T>
void raw_move(Thread& t, const Inst& inst) {
  Lanes<T> bits;
  read_bits(t, inst.src[0], inst.exec_size, bits);
  const uint32_t active = t.active_lanes(inst), defined = sources_defined<1>(t, inst);
  if (!t.track || (active & ~defined) == 0) return write_bits(t, inst, bits, active, defined);
  const Lanes<uint8_t> bytes = defined_bytes(t, inst.src[0], inst.exec_size);
  write_bits(t, inst, bits, active, defined);
  mark_bytes(t, inst.dst, inst.exec_size, active & t.defined_predicate(inst), bytes);
}

template <class T>
void integer_move(Thread& t, const Inst& inst) {
  Lanes<T> value;
  read_integers(t, inst.src[0], inst.exec_size, value);
  finish_integers(t, inst, value, t.active_lanes(inst), sources_defined<1>(t, inst));
}

inline void float_move(Thread& t, const Inst& inst) {
  Lanes<double> value;
  read_doubles(t, inst.src[0], inst.exec_size, value);
  finish_doubles(t, inst, value, t.active_lanes(inst), sources_defined<1>(t, inst));
}

// f -> hf and f -> bf, round to nearest even: the conversions of a flash-attention loop.
inline void float_to_half(Thread& t, const Inst& inst) {
  if (!native_floats(t)) return float_move(t, inst);
  Lanes<float> value;
  read_floats(t, inst.src[0], inst.exec_size, value);
  for (int i = inst.exec_size; i % 8 != 0; ++i) value[i] = 0;
  Lanes<uint16_t> bits;
  for (int i = 0; i < inst.exec_size; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bits.v + i),
                     _mm256_cvtps_ph(_mm256_load_ps(value.v + i), 0));
  }
  write_bits(t, inst, bits, t.active_lanes(inst), sources_defined<1>(t, inst));
}
inline void float_to_bfloat(Thread& t, const Inst& inst) {
  if (!native_floats(t)) return float_move(t, inst);
  Lanes<float> value;
  read_floats(t, inst.src[0], inst.exec_size, value);
  Lanes<uint16_t> bits;
  for (int i = 0; i < inst.exec_size; ++i) {
    const uint32_t x = std::bit_cast<uint32_t>(value[i]);
    const uint32_t nearest = (x + 0x7fff + (x >> 16 & 1)) >> 16;
    bits[i] = static_cast<uint16_t>((x & 0x7fffffff) > 0x7f800000 ? x >> 16 | 0x40 : nearest);
  }
  write_bits(t, inst, bits, t.active_lanes(inst), sources_defined<1>(t, inst));
}

inline Execute move_function(const Inst& inst) {
  const Operand& s = inst.src[0];
  const Type from = s.file == File::kImmediate ? immediate_type(s) : s.type, to = inst.dst.type;
  const bool plain =
      !s.negate && !s.absolute && !inst.saturate && inst.condition == Condition::kNone;
  if (plain &&
      (from == to || (!is_float(from) && !is_float(to) && type_bits(from) == type_bits(to)))) {
    if (type_bits(to) == 64) return raw_move<uint64_t>;
    return raw_move<uint32_t>;
  }
  if (!is_float(from))
    return type_bits(from) == 64 || type_bits(to) == 64 ? integer_move<Int128>
                                                        : integer_move<int64_t>;
  const bool converts = !inst.saturate && inst.condition == Condition::kNone && from == Type::kF;
  if (converts && to == Type::kHF) return float_to_half;
  if (converts && to == Type::kBF) return float_to_bfloat;
  return float_move;
}

enum class Round { kDown, kUp, kEven, kZero, kFraction };

// Rounding to integral values keeps the sign of zero; frc is x - floor(x).
template <Round kind>
void round(Thread& t, const Inst& inst) {
  Lanes<double> x;
  read_doubles(t, inst.src[0], inst.exec_size, x);
  for (int i = 0; i < inst.exec_size; ++i) {
    if constexpr (kind == Round::kDown)
      x[i] = std::floor(x[i]);
    else if constexpr (kind == Round::kUp)
      x[i] = std::ceil(x[i]);
    else if constexpr (kind == Round::kEven)
      x[i] = std::nearbyint(x[i]);
    else if constexpr (kind == Round::kZero)
      x[i] = std::trunc(x[i]);
    else
      x[i] = std::isinf(x[i]) ? std::numeric_limits<double>::quiet_NaN()
                              : add_to_odd(x[i], -std::floor(x[i]));
  }
  finish_doubles(t, inst, x, t.active_lanes(inst), sources_defined<1>(t, inst));
}

}  // namespace xesim
