// 8-bit elements of quantised caches: widened in registers, and rounded from fp32.
#pragma once

#include "tile/quantised.hpp"
#include "xe/vec.hpp"

namespace xeflash::xe {

// The type in which messages move elements T.
template <class T>
using Raw = std::conditional_t<kQuantised<T>, uint8_t, T>;

// ---- widened ------------------------------------------------------------------------------------

// Widens to fp16, which holds all numbers of each type. An element is the upper byte of a 16-bit
// word; the lower byte may be anything.
template <class E, int N>
XF_INLINE simd<f16, N> halves_of(simd<uint16_t, N> words) {
  if constexpr (std::is_same_v<E, e5m2>) {
    simd<uint32_t, N / 2> bits = words.template bit_cast_view<uint32_t>() & 0xff00ff00u;
    return bits.template bit_cast_view<f16>();
  } else if constexpr (std::is_same_v<E, e4m3>) {  // fields as in fp16, then * 256 for its bias
    const simd<uint32_t, N / 2> pairs = words.template bit_cast_view<uint32_t>();
    const simd<uint32_t, N / 2> magnitude = (pairs & 0x7f007f00u) >> 1;
    const simd<uint32_t, N / 2> nan = (magnitude + 0x00800080u) & 0x40004000u;  // set for 0x7f only
    simd<uint32_t, N / 2> bits = (pairs & 0x80008000u) | magnitude | nan;
    return simd<f16, N>(bits.template bit_cast_view<f16>()) * f16(256.f);
  } else {
    return esimd::convert<f16>(simd<int16_t, N>(words.template bit_cast_view<int16_t>() >> 8));
  }
}
template <class T, class E, int N>
XF_INLINE simd<T, N> numbers_of(simd<uint16_t, N> words) {
  const simd<f16, N> halves = halves_of<E>(words);
  if constexpr (std::is_same_v<T, f16>)
    return halves;
  else
    return esimd::convert<T>(simd<float, N>(esimd::convert<float>(halves)));
}

// Bytes of dwords, widened to fp16 and multiplied by kFactor: of each dword the even ones, and the
// odd ones. A NaN of e4m3 becomes an infinity, as its 480 times 140 leaves fp16; all numbers times
// 140 are exact.
template <class E, int N>
struct Widened {
  static constexpr float kFactor = std::is_same_v<E, e4m3> ? 140.f : 1.f;
  simd<f16, 2 * N> even, odd;

  XF_INLINE explicit Widened(const simd<uint32_t, N>& dwords)
      : even(half(dwords, true)), odd(half(dwords, false)) {}

 private:
  static XF_INLINE simd<f16, 2 * N> half(simd<uint32_t, N> x, bool is_even) {
    if constexpr (std::is_same_v<E, int8_t>) {  // 1024 + 128 + the number
      if (!is_even) x = x >> 8;
      simd<uint32_t, N> bits = (x & 0x00ff00ffu) ^ 0x64806480u;
      return simd<f16, 2 * N>(bits.template bit_cast_view<f16>()) - f16(1152.f);
    } else if constexpr (std::is_same_v<E, e5m2>) {
      if (is_even) x = x << 8;
      simd<uint32_t, N> bits = x & 0xff00ff00u;
      return bits.template bit_cast_view<f16>();
    } else {  // fields as in fp16, then * 256 for its bias
      if (is_even) x = x << 8;
      simd<int16_t, 2 * N> words = x.template bit_cast_view<int16_t>() >> 1;
      simd<uint32_t, N> bits = words.template bit_cast_view<uint32_t>() & 0xbf80bf80u;
      return simd<f16, 2 * N>(bits.template bit_cast_view<f16>()) * f16(256.f * kFactor);
    }
  }
};

// Widens elements in their order.
template <class T, class E, int N>
XF_INLINE simd<T, N> widen_bytes(simd<uint8_t, N> bytes) {
  return numbers_of<T, E>(simd<uint16_t, N>(esimd::convert<uint16_t>(bytes) << 8));
}
// Widens elements 2 i and 2 i + 1 of every dword.
template <class T, class E, int N>
XF_INLINE simd<T, 2 * N> widen_pairs(simd<uint32_t, N> dwords, int i) {
  const simd<uint16_t, N> two = dwords.template bit_cast_view<uint16_t>().template select<N, 2>(i);
  simd<uint16_t, 2 * N> words;
  words.template select<N, 2>(0) = two << 8;
  words.template select<N, 2>(1) = two;
  return numbers_of<T, E>(words);
}

// Widens quantised elements to fp16, and leaves others as they are.
template <class T, int N>
XF_INLINE auto halved(simd<Raw<T>, N> x) {
  if constexpr (kQuantised<T>)
    return widen_bytes<f16, T>(x);
  else
    return x;
}
// Widens elements to T in their order, dwords in and dwords out.
template <class T, class E, int N>
XF_INLINE simd<uint32_t, N* int(sizeof(T) / sizeof(E))> widen_in_order(simd<uint32_t, N> dwords) {
  if constexpr (!std::is_same_v<T, E>) {
    const simd<uint8_t, 4 * N> bytes = dwords.template bit_cast_view<uint8_t>();
    simd<T, 4 * N> x = widen_bytes<T, E>(bytes);
    return x.template bit_cast_view<uint32_t>();
  } else {
    return dwords;
  }
}
// Widens rows of `Lanes` dwords. Each becomes sizeof(T) / sizeof(E) rows, in which the elements of
// one dword lie below each other. Returns R of these rows from row `first` on.
template <class T, class E, int R, int Lanes, int N>
XF_INLINE simd<uint32_t, R * Lanes> widen_rows(const simd<uint32_t, N>& dwords, int first) {
  constexpr int kRatio = sizeof(T) / sizeof(E), kFrom = R / kRatio;
  const auto from = part<kFrom * Lanes>(dwords, first / kRatio * Lanes);
  if constexpr (!kQuantised<E>) {
    return from;
  } else {
    simd<uint32_t, R * Lanes> x;
    auto rows = x.template bit_cast_view<uint32_t, kFrom, kRatio * Lanes>();
    XF_UNROLL for (int i = 0; i < 2; ++i) {
      simd<T, 2 * kFrom * Lanes> pairs = widen_pairs<T, E>(from, i);
      if constexpr (sizeof(T) == 2) {
        rows.template select<kFrom, 1, Lanes, 1>(0, i * Lanes) =
            pairs.template bit_cast_view<uint32_t>();
      } else {
        XF_UNROLL for (int k = 0; k < 2; ++k) {
          rows.template select<kFrom, 1, Lanes, 1>(0, (2 * i + k) * Lanes) =
              pairs.template bit_cast_view<uint32_t>().template select<kFrom * Lanes, 2>(k);
        }
      }
    }
    return x;
  }
}

// ---- rounded ------------------------------------------------------------------------------------

// Rounds to the nearest number, ties to even; what is too large becomes the largest number.
template <class F8>
XF_INLINE simd<uint8_t, kLanes> narrow_to(floats x) {
  constexpr float kSmallest =
      __builtin_bit_cast(float, static_cast<uint32_t>(128 - F8::kBias) << 23);
  const auto bits_of = [](floats v) { return uints(v.template bit_cast_view<uint32_t>()); };
  const floats a = esimd::min<float>(esimd::abs<float>(x), floats(F8::kMax));
  // Adding 2^(23 + e - mantissa bits) rounds to a multiple of the spacing at exponent e.
  uints exponent = bits_of(esimd::max<float>(a, floats(kSmallest))) & 0x7f800000u;
  exponent += (23u - F8::kMantissa) << 23;
  const floats rounder = exponent.template bit_cast_view<float>();
  const floats r = (a + rounder) - rounder;
  uints magnitude = (bits_of(r) >> (23 - F8::kMantissa)) - ((127u - F8::kBias) << F8::kMantissa);
  magnitude.merge(esimd::convert<uint32_t>(floats(r * ((1 << F8::kMantissa) / kSmallest))),
                  r < kSmallest);
  magnitude.merge(uints(0x7fu), x != x);
  return esimd::convert<uint8_t>(uints(bits_of(x) >> 31 << 7 | magnitude));
}
template <>
XF_INLINE simd<uint8_t, kLanes> narrow_to<int8_t>(floats x) {
  const floats inside = esimd::max<float>(esimd::min<float>(x, floats(127.f)), floats(-127.f));
  const floats whole = (inside + 12582912.f) - 12582912.f;
  return esimd::convert<uint8_t>(ints(esimd::convert<int32_t>(whole)));
}

}  // namespace xeflash::xe
