// Vectors of the Xe backend: 16 fp32 lanes are one register of PVC and BMG.
#pragma once

#include <cstdint>
#include <sycl/ext/intel/esimd.hpp>
#include <sycl/ext/intel/esimd/xmx/dpas.hpp>
#include <type_traits>

#define XF_INLINE inline __attribute__((always_inline))
#define XF_UNROLL _Pragma("unroll")

namespace xeflash::xe {

enum class Arch { pvc, bmg, dg2 };
constexpr Arch kArch = Arch::XEFLASH_XE_ARCH;
static_assert(kArch != Arch::dg2, "DG2 has 8-lane dpas and no 2D block messages: not written yet");

namespace esimd = sycl::ext::intel::esimd;
namespace esimdx = sycl::ext::intel::experimental::esimd;
using esimd::simd;

constexpr int kLanes = 16;
constexpr int kGrfBytes = 256 * 64;  // of a thread, with grf_size<256>
using f32x16 = simd<float, kLanes>;
using i32x16 = simd<int32_t, kLanes>;
using u32x16 = simd<uint32_t, kLanes>;
using mask16 = esimd::simd_mask<kLanes>;

using bf16 = sycl::ext::oneapi::bfloat16;
using f16 = sycl::half;

// N elements of x from `first` on.
template <int N, class T, int M>
XF_INLINE simd<T, N> part(simd<T, M> x, int first) {
  return x.template select<N, 1>(first);
}

XF_INLINE i32x16 lane_index() { return i32x16(0, 1); }

XF_INLINE float max(float a, float b) { return a > b ? a : b; }
XF_INLINE f32x16 max(f32x16 a, f32x16 b) { return esimd::max<float>(a, b); }
XF_INLINE f32x16 select(mask16 c, f32x16 a, f32x16 b) {
  b.merge(a, c);
  return b;
}

// tanh(x): odd polynomial near 0 (Cephes' coefficients), else 1 - 2 / (e^2x + 1).
XF_INLINE f32x16 tanh(f32x16 x) {
  const f32x16 z = x * x;
  f32x16 poly = -5.70498872745e-3f * z + 2.06390887954e-2f;
  poly = (poly * z - 5.37397155531e-2f) * z + 1.33314422036e-1f;
  poly = poly * z - 3.33332819422e-1f;
  const f32x16 e = esimd::exp2(f32x16(x * 2.88539008f));
  const f32x16 big = 1.f - 2.f * esimd::inv(f32x16(e + 1.f));
  return select(z < 0.390625f, poly * z * x + x, big);
}

// Halves the lanes of each of R rows, `Lanes` wide, until one is left.
template <int R, int Lanes, class Op>
XF_INLINE simd<float, R> fold_rows(simd<float, R * Lanes> x, Op op) {
  if constexpr (Lanes == 1) {
    return x;
  } else {
    constexpr int kHalf = Lanes / 2;
    const simd<float, R * kHalf> low = x.template replicate_vs_w_hs<R, Lanes, kHalf, 1>(0);
    const simd<float, R * kHalf> high = x.template replicate_vs_w_hs<R, Lanes, kHalf, 1>(kHalf);
    return fold_rows<R, kHalf>(simd<float, R * kHalf>(op(low, high)), op);
  }
}

}  // namespace xeflash::xe
