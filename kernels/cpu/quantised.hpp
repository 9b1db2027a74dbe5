// Elements of quantised caches: widened to fp32, and rounded from it.
#pragma once

#include "cpu/vec.hpp"
#include "tile/quantised.hpp"

namespace xeflash::cpu {

// Rounds to the nearest number of an 8-bit float, ties to even; what is too large becomes the
// largest number. The bits are in the low byte of each lane.
template <class F8>
XF_INLINE u32x16 round_to_f8(f32x16 x) {
  constexpr int kMinExponent = 1 - F8::kBias;
  const u32x16 sign = bit_cast<u32x16>(x) >> 31 << 7;
  f32x16 a = max(x, -x);
  a = a < f32x16(F8::kMax) ? a : f32x16(F8::kMax);
  const float smallest = bit_cast<float>(static_cast<uint32_t>(127 + kMinExponent) << 23);
  const u32x16 exponent = bit_cast<u32x16>(max(a, f32x16(smallest))) & 0x7f800000u;
  // Adding 2^(23 + e - mantissa bits) rounds to a multiple of the spacing at exponent e.
  const f32x16 rounder = bit_cast<f32x16>(exponent + ((23u - F8::kMantissa) << 23));
  const f32x16 r = (a + rounder) - rounder;
  const u32x16 normal =
      (bit_cast<u32x16>(r) >> (23 - F8::kMantissa)) - ((127u - F8::kBias) << F8::kMantissa);
  const float per_spacing = (1 << F8::kMantissa) / smallest;
  const u32x16 subnormal = __builtin_convertvector(r * per_spacing, u32x16);
  const u32x16 magnitude = r < f32x16(smallest) ? subnormal : normal;
  return sign | (x == x ? magnitude : u32x16(0x7f));
}
template <>
struct Lanes<e4m3> {
  using Vec = u8x16;
  static XF_INLINE f32x16 widen(u8x16 v) {
    // The fields move to fp16's places, as fp16's subnormals are never flushed or slow. The factor
    // corrects the bias.
    const auto wide = __builtin_convertvector(bit_cast<i8x16>(v), i16x16);
    const u16x16 half = bit_cast<u16x16>(wide << 7) & uint16_t{0xbfff};
    const u16x16 nan = (half + uint16_t{0x80}) & uint16_t{0x4000};  // set for 0x7f only
    return __builtin_convertvector(bit_cast<f16x16>(half | nan), f32x16) * 256.f;
  }
  static XF_INLINE u8x16 narrow(f32x16 v) {
    return __builtin_convertvector(round_to_f8<e4m3>(v), u8x16);
  }
};
template <>
struct Lanes<e5m2> {
  using Vec = u8x16;
  static XF_INLINE f32x16 widen(u8x16 v) {  // e5m2 is the upper half of an fp16
    const u16x16 half = __builtin_convertvector(v, u16x16) << 8;
    return __builtin_convertvector(bit_cast<f16x16>(half), f32x16);
  }
  static XF_INLINE u8x16 narrow(f32x16 v) {
    return __builtin_convertvector(round_to_f8<e5m2>(v), u8x16);
  }
};
template <>
struct Lanes<int8_t> {
  using Vec = i8x16;
  static XF_INLINE f32x16 widen(i8x16 v) { return __builtin_convertvector(v, f32x16); }
  static XF_INLINE i8x16 narrow(f32x16 v) {
    v = v < f32x16(127.f) ? v : f32x16(127.f);
    v = (max(v, f32x16(-127.f)) + 12582912.f) - 12582912.f;  // to the nearest integer, ties to even
    return __builtin_convertvector(__builtin_convertvector(v, i32x16), i8x16);
  }
};

constexpr int kUnitVecs = kUnitColumns / kLanes;

// Calls f(vector of q, its number) for the columns of a unit of nibbles. Nibbles m of a vector of
// 16 words are columns 16 m to 16 m + 15.
template <class F>
XF_INLINE void each_in_unit(const nibbles* unit, F f) {
  const u16x16 signs = load_as<u16x16>(unit) ^ uint16_t { 0x8888 };  // q + 8 becomes q in 4 bits
  const auto words = __builtin_convertvector(signs, u32x16);
  XF_UNROLL for (int m = 0; m < kUnitVecs; ++m) {
    const auto q = bit_cast<i32x16>(words << (28 - 4 * m)) >> 28;
    f(__builtin_convertvector(q, f32x16), m);
  }
}

}  // namespace xeflash::cpu
