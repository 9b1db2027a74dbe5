// Vectors of the Xe backend: the fp32 lanes of one register, as wide as a dpas.
#pragma once

#include "tile/constants.hpp"
#include "tile/macros.hpp"
#include "xe/system.hpp"

namespace xeflash::xe {

enum class Arch { pvc, bmg, dg2 };
constexpr Arch kArch = Arch::XEFLASH_XE_ARCH;

// The ways in which rows of a matrix are read and written: 2D block messages, for which addresses
// and strides have to obey rules (see message.hpp); gathers of dwords, for rows at multiples of 4
// bytes; or gathers of single elements.
enum class Access { block2d, dwords, elements };
constexpr Access kAccess = Access::XEFLASH_XE_ACCESS;
static_assert(kArch != Arch::dg2 || kAccess != Access::block2d, "Xe-HPG has no 2D block messages");

namespace esimd = sycl::ext::intel::esimd;
namespace esimdx = sycl::ext::intel::experimental::esimd;
using esimd::simd;

constexpr int kMostSharedBytes = XEFLASH_XE_SHARED_BYTES;  // of a work-group
constexpr int kLanes = kArch == Arch::dg2 ? 8 : 16;
constexpr int kGrfBytes = 256 * 4 * kLanes;  // of a thread, with grf_size<256>
using floats = simd<float, kLanes>;
using ints = simd<int32_t, kLanes>;
using uints = simd<uint32_t, kLanes>;
using lane_mask = esimd::simd_mask<kLanes>;

using bf16 = sycl::ext::oneapi::bfloat16;
using f16 = sycl::half;

template <int Bytes>
using UintOfSize =
    std::conditional_t<Bytes == 4, uint32_t, std::conditional_t<Bytes == 2, uint16_t, uint8_t>>;

constexpr int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

// Returns N elements of x from `first` on.
template <int N, class T, int M>
XF_INLINE simd<T, N> part(simd<T, M> x, int first) {
  return x.template select<N, 1>(first);
}

// Calls f(0), f(1), ... with constants. The compiler does not unroll a loop beyond some size, and
// an array of registers whose index is no constant is moved element by element.
template <int Count, class F>
XF_INLINE void in_steps(F f) {
  [&]<int... Step>(std::integer_sequence<int, Step...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, Step>()), ...);
  }(std::make_integer_sequence<int, Count>());
}

// True if products keep the order of their steps, by fences that are no instructions: the compiler
// moves nothing across them.
constexpr bool kInOrder = XEFLASH_XE_IN_ORDER;
constexpr uint8_t kScheduleBarrier = 0x80;

constexpr int kExp2Headroom = 0;  // of P; none, as the instruction has no factor

XF_INLINE ints lane_index() { return ints(0, 1); }

XF_INLINE constexpr int at_most(int i, int last) { return i < last ? i : last; }
XF_INLINE float max(float a, float b) { return a > b ? a : b; }
XF_INLINE float exp2(float x) { return esimd::exp2(x); }
XF_INLINE float log2(float x) { return esimd::log2(x); }
XF_INLINE floats max(floats a, floats b) { return esimd::max<float>(a, b); }
template <int N>
XF_INLINE simd<float, N> max(simd<float, N> a, simd<float, N> b) {
  return esimd::max<float>(a, b);
}
template <int N>
XF_INLINE simd<float, N> exp2(simd<float, N> x) {
  return esimd::exp2(x);
}
template <int N>
XF_INLINE simd<float, N> log2(simd<float, N> x) {
  return esimd::log2(x);
}
template <int N>
XF_INLINE simd<float, N> inverse(simd<float, N> x) {
  return esimd::inv(x);
}
template <int N>
XF_INLINE simd<float, N> magnitude(simd<float, N> x) {
  return esimd::abs<float>(x);
}
template <int N>
XF_INLINE simd<float, N> select(esimd::simd_mask<N> c, simd<float, N> a, simd<float, N> b) {
  b.merge(a, c);
  return b;
}
XF_INLINE floats select(lane_mask c, floats a, floats b) {
  b.merge(a, c);
  return b;
}
// Returns x as it is after it was stored as T.
template <class T, int N>
XF_INLINE simd<float, N> rounded(simd<float, N> x) {
  return esimd::convert<float>(simd<T, N>(esimd::convert<T>(x)));
}
XF_INLINE float select(bool c, float a, float b) { return c ? a : b; }
XF_INLINE float magnitude(float x) { return x < 0.f ? -x : x; }
XF_INLINE float inverse(float x) { return 1.f / x; }
template <class V>
XF_INLINE V divide(V a, V b) {
  return a * inverse(b);
}

// Returns tanh(x): by an odd polynomial near 0 (Cephes' coefficients), else 1 - 2 / (e^2x + 1).
XF_INLINE floats tanh(floats x) {
  const floats z = x * x;
  floats poly = -5.70498872745e-3f * z + 2.06390887954e-2f;
  poly = (poly * z - 5.37397155531e-2f) * z + 1.33314422036e-1f;
  poly = poly * z - 3.33332819422e-1f;
  const floats e = esimd::exp2(floats(x * 2.88539008f));
  const floats big = 1.f - 2.f * esimd::inv(floats(e + 1.f));
  return select(z < 0.390625f, poly * z * x + x, big);
}

// Reduces each of R rows of `Lanes` lanes to one value, halving the lanes in each step.
template <int R, int Lanes, class V, class Op>
XF_INLINE simd<V, R> fold_rows(simd<V, R * Lanes> x, Op op) {
  if constexpr (Lanes == 1) {
    return x;
  } else {
    constexpr int kHalf = Lanes / 2;
    const simd<V, R * kHalf> low = x.template replicate_vs_w_hs<R, Lanes, kHalf, 1>(0);
    const simd<V, R * kHalf> high = x.template replicate_vs_w_hs<R, Lanes, kHalf, 1>(kHalf);
    return fold_rows<R, kHalf>(simd<V, R * kHalf>(op(low, high)), op);
  }
}

}  // namespace xeflash::xe
