// Float formats of the machine, to and from double and float.
//
// Arithmetic of the narrow types runs in double: sums and products of two are exact or rounded to
// odd there, so the one rounding that follows, to at most 24 bits, is the right one (Boldo &
// Melquiond, 2008).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "isa/inst.hpp"

namespace xesim {

enum class Rounding : uint8_t { kNearest, kUp, kDown, kZero };  // cr0[5:4]

struct FloatFormat {
  int mantissa_bits;  // stored
  int exponent_bits;
  int shift;  // tf32 sits in the upper bits of a dword
};
constexpr FloatFormat format_of(Type t) {
  switch (t) {
    case Type::kBF8:
      return {2, 5, 0};
    case Type::kHF:
      return {10, 5, 0};
    case Type::kBF:
      return {7, 8, 0};
    case Type::kTF32:
      return {10, 8, 13};
    case Type::kF:
      return {23, 8, 0};
    default:
      return {52, 11, 0};
  }
}

// The value of `bits`; exact.
inline double decode_float(uint64_t bits, Type t) {
  if (t == Type::kF || t == Type::kTF32) return std::bit_cast<float>(static_cast<uint32_t>(bits));
  if (t == Type::kBF) return std::bit_cast<float>(static_cast<uint32_t>(bits << 16));
  if (t == Type::kDF) return std::bit_cast<double>(bits);
  const uint32_t half = static_cast<uint32_t>(t == Type::kBF8 ? bits << 8 : bits) & 0xffff;
  const uint32_t sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) {
    const double value = std::ldexp(static_cast<double>(mantissa), -24);
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

// `x` rounded once to type t. NaN becomes the quiet NaN of positive sign with the upper payload
// bits kept.
inline uint64_t encode_float(double x, Type t, Rounding rounding) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  if (t == Type::kDF) return bits;
  const FloatFormat f = format_of(t);
  const int max_exponent = (1 << f.exponent_bits) - 1, bias = max_exponent >> 1;
  const uint64_t infinity = static_cast<uint64_t>(max_exponent) << f.mantissa_bits;
  const bool negative = bits >> 63 != 0;
  const uint64_t sign = static_cast<uint64_t>(negative) << (f.mantissa_bits + f.exponent_bits);
  const int exponent = static_cast<int>(bits >> 52 & 2047);
  uint64_t mantissa = bits & ((uint64_t{1} << 52) - 1);
  uint64_t result;
  if (exponent == 2047) {
    result = mantissa == 0 ? infinity
                           : infinity | uint64_t{1} << (f.mantissa_bits - 1) |
                                 mantissa >> (52 - f.mantissa_bits);
  } else if (exponent == 0 && mantissa == 0) {
    result = 0;
  } else {
    // value = mantissa * 2^(e - 52), mantissa normalised with the hidden bit (a denormal double has
    // no role here but must round away correctly)
    int e = exponent - 1023;
    if (exponent == 0)
      e = -1022;
    else
      mantissa |= uint64_t{1} << 52;
    int target = e + bias;            // biased exponent in t
    int drop = 52 - f.mantissa_bits;  // bits that go
    if (target < 1) {                 // denormal in t
      drop += 1 - target;
      target = 0;
    }
    uint64_t kept = drop < 64 ? mantissa >> drop : 0;
    const uint64_t rest = drop < 64 ? mantissa & ((uint64_t{1} << drop) - 1) : mantissa;
    if (rest != 0) {
      bool up = false;
      switch (rounding) {
        case Rounding::kNearest: {
          const uint64_t half = drop < 64 ? uint64_t{1} << (drop - 1) : ~uint64_t{0};
          up = rest > half || (rest == half && (kept & 1) != 0);
          break;
        }
        case Rounding::kUp:
          up = !negative;
          break;
        case Rounding::kDown:
          up = negative;
          break;
        case Rounding::kZero:
          break;
      }
      kept += up;
    }
    // The hidden bit, where there is one, adds 1 to the exponent field; so does a carry out of the
    // mantissa.
    result = target == 0 ? kept : (static_cast<uint64_t>(target - 1) << f.mantissa_bits) + kept;
    if (result >= infinity) {
      const bool to_infinity = rounding == Rounding::kNearest ||
                               (rounding == Rounding::kUp && !negative) ||
                               (rounding == Rounding::kDown && negative);
      result = to_infinity ? infinity : infinity - 1;
    }
  }
  return (result | sign) << f.shift;
}

// Rounds to odd: `rounded` was computed to nearest and differs from the exact value by `error`.
inline double to_odd(double rounded, double error) {
  const uint64_t bits = std::bit_cast<uint64_t>(rounded);
  if (error == 0 || !std::isfinite(rounded) || (bits & 1) != 0) return rounded;
  // The exact value lies between two neighbours; of those, the odd one is next to `rounded` towards
  // the error.
  const bool away = (error > 0) == (rounded > 0);
  return std::bit_cast<double>(away ? bits + 1 : bits - 1);
}
inline double add_to_odd(double a, double b) {
  const double sum = a + b;
  const double part = sum - a;
  return to_odd(sum, (a - (sum - part)) + (b - part));  // TwoSum (Knuth)
}
}  // namespace xesim
