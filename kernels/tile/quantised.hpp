// The element types of quantised caches: e4m3 and e5m2 below, and int8_t.
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

template <class E>
constexpr bool kQuantised = sizeof(E) == 1;

// True if rows have scales: the values of a row are then its scale times its elements.
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

}  // namespace xeflash
