// Vectors of the CPU backend: a work-item is one SIMD program, and its lanes are explicit. f32x16
// is a zmm register with AVX-512 and a pair of ymm registers with AVX2; no vectoriser is involved.
#pragma once

#include <cstdint>
#include <type_traits>

#include "tile/constants.hpp"
#include "tile/macros.hpp"

#define XF_NO_UNROLL _Pragma("nounroll")    // for loops whose copies would only cost compile time
#define XF_UNROLL_SOME _Pragma("unroll 4")  // for loops whose end would be mispredicted each time

namespace xeflash::cpu {

enum class Isa { kGeneric, kAvx512, kAvx512Bf16, kAmxBf16 };  // each includes those before it
constexpr Isa kIsa = static_cast<Isa>(XEFLASH_CPU_ISA);
constexpr bool kHasAvx512 = kIsa >= Isa::kAvx512;

constexpr int kLanes = 16;
using f32x16 = float __attribute__((ext_vector_type(16)));
using i32x16 = int32_t __attribute__((ext_vector_type(16)));
using u32x16 = uint32_t __attribute__((ext_vector_type(16)));
using i16x16 = int16_t __attribute__((ext_vector_type(16)));
using u16x16 = uint16_t __attribute__((ext_vector_type(16)));
using f16x16 = _Float16 __attribute__((ext_vector_type(16)));
using u8x16 = uint8_t __attribute__((ext_vector_type(16)));
using i8x16 = int8_t __attribute__((ext_vector_type(16)));

struct bf16 {
  uint16_t bits;
};
using f16 = _Float16;

template <class To, class From>
XF_INLINE To bit_cast(const From& x) {
  return __builtin_bit_cast(To, x);
}

// These load and store a vector at any address.
template <class V, class T>
XF_INLINE V load_as(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(V));
  return v;
}
template <class V, class T>
XF_INLINE void store_as(T* p, V v) {
  __builtin_memcpy(p, &v, sizeof(V));
}

XF_INLINE i32x16 lane_index() {
  return i32x16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}

XF_INLINE f32x16 max(f32x16 a, f32x16 b) { return a > b ? a : b; }
XF_INLINE float max(float a, float b) { return a > b ? a : b; }
XF_INLINE f32x16 fma(f32x16 a, f32x16 b, float c) {
  return __builtin_elementwise_fma(a, b, f32x16(c));
}
XF_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return __builtin_elementwise_fma(a, b, c); }
XF_INLINE f32x16 fma(f32x16 a, float b, f32x16 c) {
  return __builtin_elementwise_fma(a, f32x16(b), c);
}
XF_INLINE f32x16 select(i32x16 c, f32x16 a, f32x16 b) { return c ? a : b; }
XF_INLINE f32x16 select(bool c, f32x16 a, f32x16 b) { return c ? a : b; }
XF_INLINE float select(bool c, float a, float b) { return c ? a : b; }
XF_INLINE f32x16 magnitude(f32x16 x) { return __builtin_elementwise_abs(x); }
XF_INLINE float magnitude(float x) { return x < 0.f ? -x : x; }
XF_INLINE f32x16 divide(f32x16 a, f32x16 b) { return a / b; }
XF_INLINE float divide(float a, float b) { return a / b; }

// ---- widening and narrowing -------------------------------------------------------------------

XF_INLINE float to_float(float x) { return x; }
XF_INLINE float to_float(f16 x) { return static_cast<float>(x); }
XF_INLINE float to_float(bf16 x) { return bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// Returns the bf16 bits of x, rounded to nearest even, in the upper half of each lane; NaN stays
// NaN.
XF_INLINE u32x16 round_to_bf16(f32x16 x) {
  const u32x16 bits = bit_cast<u32x16>(x);
  const u32x16 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return (x == x) ? rounded : (bits | 0x400000u);
}

template <class T>
struct Lanes;
template <>
struct Lanes<float> {
  using Vec = f32x16;
  static XF_INLINE f32x16 widen(f32x16 v) { return v; }
  static XF_INLINE f32x16 narrow(f32x16 v) { return v; }
};
template <>
struct Lanes<f16> {
  using Vec = f16x16;
  static XF_INLINE f32x16 widen(f16x16 v) { return __builtin_convertvector(v, f32x16); }
  static XF_INLINE f16x16 narrow(f32x16 v) { return __builtin_convertvector(v, f16x16); }
};
template <>
struct Lanes<bf16> {
  using Vec = u16x16;
  static XF_INLINE f32x16 widen(u16x16 v) {
    return bit_cast<f32x16>(__builtin_convertvector(v, u32x16) << 16);
  }
  static XF_INLINE u16x16 narrow(f32x16 v) {
    return __builtin_convertvector(round_to_bf16(v) >> 16, u16x16);
  }
};

// Keeps 16 lanes together where only some are used: otherwise the compiler would narrow a
// conversion to, say, 11 lanes, and the CPU driver has no conversion of that width.
template <class V>
XF_INLINE V keep_whole(V v) {
  using Whole = std::conditional_t<sizeof(V) == 16, u8x16, u16x16>;
  Whole whole;
  asm("" : "=v"(whole) : "0"(bit_cast<Whole>(v)));
  return bit_cast<V>(whole);
}

// Loads 16 elements at p as fp32. The last vector of a row may have fewer (Count); the rest reads
// 0.
template <int Count = kLanes, class T>
XF_INLINE f32x16 load_widened(const T* p) {
  typename Lanes<T>::Vec v = {};
  __builtin_memcpy(&v, p, Count * sizeof(T));
  if constexpr (Count < kLanes && sizeof(T) < 4) v = keep_whole(v);
  return Lanes<T>::widen(v);
}
template <int Count = kLanes, class T>
XF_INLINE void store_narrowed(T* p, f32x16 x) {
  auto v = Lanes<T>::narrow(x);
  if constexpr (Count < kLanes && sizeof(T) < 4) v = keep_whole(v);
  __builtin_memcpy(p, &v, Count * sizeof(T));
}

// Returns x as it is after it was stored as T.
template <class T>
XF_INLINE f32x16 rounded(f32x16 x) {
  return Lanes<T>::widen(Lanes<T>::narrow(x));
}

// Packs pairs of bf16 into 32-bit lanes: `even` in the low half and `odd` in the high half, as
// vdpbf16ps reads them.
XF_INLINE u32x16 pack_pairs(f32x16 even, f32x16 odd) {
  if constexpr (kIsa >= Isa::kAvx512Bf16) {
    u32x16 halves;  // words 0..15 = even, 16..31 = odd
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(halves) : "v"(even), "v"(odd));
    const u32x16 order = bit_cast<u32x16>(lane_index()) * 0x10001u + 0x100000u;  // words i, 16 + i
    u32x16 pairs;
    asm("vpermw %1, %2, %0" : "=v"(pairs) : "v"(halves), "v"(order));
    return pairs;
  } else {
    return (round_to_bf16(even) >> 16) | (round_to_bf16(odd) & 0xffff0000u);
  }
}

// Returns acc + a.even * b.even + a.odd * b.odd of pairs of bf16. The accumulator is tied to the
// result by "0": with "+v", the compiler loses the tie on the way through SPIR-V.
XF_INLINE f32x16 dot_pairs(f32x16 acc, u32x16 a, u32x16 b) {
  f32x16 sum;
  asm("vdpbf16ps %3, %2, %0" : "=v"(sum) : "0"(acc), "v"(a), "v"(b));
  return sum;
}

// ---- elementary functions -----------------------------------------------------------------------

constexpr float kExp2[4][7] = {
    {0.999925219f, 0.695833539f, 0.226067159f, 0.07802452f},
    {1.00000259f, 0.693003835f, 0.241442757f, 0.0520114612f, 0.0135341676f},
    {0.999999925f, 0.693153073f, 0.240153617f, 0.055826318f, 0.00898934016f, 0.00187757665f},
    {1.f, 0.693146984f, 0.240229836f, 0.055483342f, 0.00967884098f, 0.0012439688f,
     0.000217022548f}};

constexpr int kExp2Headroom = 32;  // of P; part of the coefficients

// Returns 2^(x - Less) by a polynomial of `Degree`: 6 for fp32 (1.9e-9), 4 for fp16 (2.6e-6), 3 for
// bf16 (7.5e-5), minimax in relative error over [0, 1]. Results below 2^-126 are 0. Results that
// are too large are inf, except with Small, which promises that no x is that large.
template <int Degree, int Less = 0, bool Small = false>
XF_INLINE f32x16 exp2(f32x16 x) {
  constexpr float kUnit = 1.f / (1ull << Less);
  static_assert(Degree >= 3 && Degree <= 6);
  f32x16 floor, f;  // x = floor + f
  if constexpr (kHasAvx512) {
    asm("vreduceps $1, %1, %0" : "=v"(f) : "v"(x));
  } else {
    constexpr float kMost = Less + 128.f;  // the exponent of inf
    if constexpr (!Small) x = f32x16(kMost) < x ? f32x16(kMost) : x;
    floor = __builtin_elementwise_floor(x);
    f = x - floor;
  }
  f32x16 y = f32x16(kExp2[Degree - 3][Degree] * kUnit);
  XF_UNROLL for (int i = Degree - 1; i >= 0; --i) y = fma(y, f, kExp2[Degree - 3][i] * kUnit);
  if constexpr (kHasAvx512) {
    f32x16 scaled;  // y 2^floor(x)
    asm("vscalefps %2, %1, %0" : "=v"(scaled) : "v"(y), "v"(x));
    return scaled;
  } else {
    const i32x16 n = __builtin_convertvector(floor, i32x16);
    const f32x16 scaled = bit_cast<f32x16>(bit_cast<i32x16>(y) + (n << 23));
    return x < f32x16(Less - 126.f) ? f32x16(0.f) : scaled;
  }
}

// Returns log2(x) for finite x > 0, with a relative error of the result near 1e-7; NaN stays NaN.
XF_INLINE f32x16 log2(f32x16 x) {
  const i32x16 bits = bit_cast<i32x16>(x);
  const i32x16 e = (bits - 0x3f3504f3) >> 23;  // x = 2^e m, m in [sqrt(1/2), sqrt(2))
  const f32x16 m = bit_cast<f32x16>(bits - (e << 23));
  const f32x16 z = (m - 1.f) / (m + 1.f), zz = z * z;
  const f32x16 atanh =
      z * (1.f + zz * (1.f / 3 + zz * (1.f / 5 + zz * (1.f / 7 + zz * (1.f / 9)))));
  const f32x16 result = __builtin_convertvector(e, f32x16) + atanh * 2.88539008f;  // 2 / ln 2
  return x == x ? result : x;
}

XF_INLINE float exp2(float x) { return exp2<6>(f32x16(x))[0]; }
XF_INLINE float log2(float x) { return log2(f32x16(x))[0]; }

// Returns tanh(x): by an odd polynomial near 0 (Cephes' coefficients), else 1 - 2 / (e^2x + 1).
XF_INLINE f32x16 tanh(f32x16 x) {
  const f32x16 a = max(x, -x), z = x * x;
  const f32x16 poly = (((-5.70498872745e-3f * z + 2.06390887954e-2f) * z - 5.37397155531e-2f) * z +
                       1.33314422036e-1f) *
                          z -
                      3.33332819422e-1f;
  const f32x16 e = exp2<6>((a > f32x16(10.f) ? f32x16(10.f) : a) * 2.88539008f);  // NaN stays
  const f32x16 big = 1.f - 2.f / (e + 1.f);
  return a < f32x16(0.625f) ? poly * z * x + x : (x < f32x16(0.f) ? -big : big);
}

// ---- across lanes -------------------------------------------------------------------------------

template <class V>
XF_INLINE V swap_lanes(V v,
                       int distance) {  // lane i <- lane i ^ distance; distance is 8, 4, 2 or 1
  switch (distance) {
    case 8:
      return __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    case 4:
      return __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    case 2:
      return __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    default:
      return __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  }
}
XF_INLINE float reduce_max(f32x16 v) {
  XF_UNROLL for (int d = 8; d > 0; d /= 2) v = max(v, swap_lanes(v, d));
  return v[0];
}
XF_INLINE bool any(i32x16 mask) {
  XF_UNROLL for (int d = 8; d > 0; d /= 2) mask |= swap_lanes(mask, d);
  return mask[0] != 0;
}
XF_INLINE float reduce_add(f32x16 v) {
  XF_UNROLL for (int d = 8; d > 0; d /= 2) v += swap_lanes(v, d);
  return v[0];
}

// Exchanges lanes of a and b in runs of `Distance`: this is one step of a transposition.
template <int Distance, class V>
XF_INLINE void exchange(V& a, V& b) {
  V x, y;
  if constexpr (Distance == 8) {
    x = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    y = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  } else if constexpr (Distance == 4) {
    x = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
    y = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  } else if constexpr (Distance == 2) {
    x = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    y = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  } else {
    x = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
    y = __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  }
  a = x;
  b = y;
}
template <int Distance, class V>
XF_INLINE void exchange_all(V (&v)[kLanes]) {
  XF_UNROLL for (int i = 0; i < kLanes; ++i) {
    if (!(i & Distance)) exchange<Distance>(v[i], v[i + Distance]);
  }
}
// Transposes 16 x 16 in place: lane j of v[i] <-> lane i of v[j].
template <class V>
XF_INLINE void transpose(V (&v)[kLanes]) {
  exchange_all<8>(v);
  exchange_all<4>(v);
  exchange_all<2>(v);
  exchange_all<1>(v);
}

// sum_each adds up lanes: lane i of the result is the sum of all lanes of v[i]. fold is one step.
template <int Distance>
XF_INLINE void fold(f32x16 (&v)[kLanes]) {
  XF_UNROLL for (int i = 0; i < Distance; ++i) {
    exchange<Distance>(v[i], v[i + Distance]);
    v[i] += v[i + Distance];
  }
}
XF_INLINE f32x16 sum_each(f32x16 (&v)[kLanes]) {
  fold<8>(v);
  fold<4>(v);
  fold<2>(v);
  fold<1>(v);
  return v[0];
}

// Reads `bytes` at p, a multiple of 256, so many `times`; returns a value that depends on all
// reads.
XF_INLINE float read_often(const char* p, int bytes, int times) {
  u32x16 seen[4] = {};
  XF_NO_UNROLL for (int i = 0; i < times; ++i) {
    asm volatile("" : : : "memory");  // else the compiler would read once
    XF_NO_UNROLL for (int at = 0; at < bytes; at += sizeof(seen)) {
      XF_UNROLL for (int v = 0; v < 4; ++v) seen[v] |= load_as<u32x16>(p + at + v * sizeof(u32x16));
    }
  }
  return reduce_add(bit_cast<f32x16>(seen[0] | seen[1] | seen[2] | seen[3]));
}

// Asks for `bytes` at p to come into L1, or only into L2. It reads nothing, so any address is
// allowed. These are instructions, as SYCL's prefetch is a call around which all vector registers
// are saved. They stay in a loop, as a burst of requests stalls the core.
template <bool ToL1>
XF_INLINE void prefetch(const void* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) {
    const char* line = static_cast<const char*>(p) + i;
    if constexpr (ToL1) {
      asm volatile("prefetcht0 (%0)" : : "r"(line));
    } else {
      asm volatile("prefetcht1 (%0)" : : "r"(line));
    }
  }
}

}  // namespace xeflash::cpu
