// The element types of quantised caches: e4m3, e5m2 and nibbles below, and int8_t.
#pragma once

#include <cstdint>

#include "tile/macros.hpp"

namespace xeflash {

// OCP 8-bit floats.
struct e4m3 {
  static constexpr int kMantissa = 3, kBias = 7;
  static constexpr float kMax = 448.f;
  uint8_t bits;
};
struct e5m2 {
  static constexpr int kMantissa = 2, kBias = 15;
  static constexpr float kMax = 57344.f;
  uint8_t bits;
};

// Two columns of V in 4 bits. A unit of 64 columns is 16 words of 16 bits, each of two elements:
// bits 4 m to 4 m + 3 of word n have column 16 m + n of the unit, as q + 8. The value is q times
// the unit's scale, which is an fp16 of either sign: the unit's largest number has q = -8.
struct nibbles {
  uint8_t bits;
};
constexpr int kUnitColumns = 64, kUnitWords = 16;
template <class E>
constexpr bool kNibbles = false;
template <>
constexpr bool kNibbles<nibbles> = true;
template <class E>
constexpr int kPerElement = kNibbles<E> ? 2 : 1;  // columns

template <class E>
constexpr bool kQuantised = sizeof(E) == 1;

// True if rows have scales: the values of a row, or of a unit of it, are then its scale times its
// elements.
template <class M>
constexpr bool kScaled = requires(const M& m) { m.scales; };
// Returns the rows without their scales.
template <class M>
XF_INLINE auto elements(const M& m) {
  if constexpr (kScaled<M>)
    return m.rows;
  else
    return m;
}

// The largest number that a type of quantised elements holds.
template <class E>
constexpr float kLargest = E::kMax;
template <>
constexpr float kLargest<int8_t> = 127.f;

// GPUs multiply the scales of V's rows by this unit, and divide O by it: the largest power of two
// that is at most kLargest. P times a scale, in fp16, is then about as large as V's values, which
// fp16 holds.
template <class E>
constexpr float kFactorUnit = 1.f;
template <>
constexpr float kFactorUnit<e4m3> = 256.f;
template <>
constexpr float kFactorUnit<e5m2> = 32768.f;
template <>
constexpr float kFactorUnit<int8_t> = 64.f;
template <>
constexpr float kFactorUnit<nibbles> = 8.f;

}  // namespace xeflash
