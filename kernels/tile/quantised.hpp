// Types of the elements of quantised caches; int8_t is the third.
#pragma once

#include <cstdint>

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

// The largest number of a type of quantised elements.
template <class E>
constexpr float kLargest = E::kMax;
template <>
constexpr float kLargest<int8_t> = 127.f;

}  // namespace xeflash
