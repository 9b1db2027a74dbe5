// Types of the elements of quantised caches; int8_t is the third.
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

// Rows that are worth a multiple of their elements.
template <class M>
constexpr bool kScaled = requires(const M& m) { m.scales; };
// The rows without their factors.
template <class M>
XF_INLINE auto elements(const M& m) {
  if constexpr (kScaled<M>)
    return m.rows;
  else
    return m;
}

// The largest number of a type of quantised elements.
template <class E>
constexpr float kLargest = E::kMax;
template <>
constexpr float kLargest<int8_t> = 127.f;

// What GPUs multiply the factors of V's rows by, and divide O by: the powers of two below those.
// P times a factor, in fp16, has then about the size of V's elements, which fp16 holds.
template <class E>
constexpr float kFactorUnit = 1.f;
template <>
constexpr float kFactorUnit<e4m3> = 256.f;
template <>
constexpr float kFactorUnit<e5m2> = 32768.f;
template <>
constexpr float kFactorUnit<int8_t> = 64.f;

}  // namespace xeflash
