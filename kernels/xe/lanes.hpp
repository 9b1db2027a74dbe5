// The vectors that changes to scores are computed with: values and positions of kLanes columns of a
// row, and array elements at those positions.
#pragma once

#include "xe/rows.hpp"

namespace xeflash::xe {

using Floats = floats;
using Ints = ints;
using Bools = lane_mask;

XF_INLINE ints max(ints a, ints b) { return esimd::max<int>(a, b); }
XF_INLINE ints select(lane_mask c, ints a, ints b) {
  b.merge(a, c);
  return b;
}
XF_INLINE lane_mask to_bools(bool x) { return lane_mask(x ? 1 : 0); }
// This is not written as c ? a : b, because IGC compiles a select of vectors by a scalar for the
// first lane only.
XF_INLINE floats select(bool c, floats a, floats b) { return select(to_bools(c), a, b); }
XF_INLINE ints select(bool c, ints a, ints b) { return select(to_bools(c), a, b); }
XF_INLINE floats exp2(floats x) { return esimd::exp2(x); }
XF_INLINE floats log2(floats x) { return esimd::log2(x); }
XF_INLINE floats log2_of_any(floats x) { return esimd::log2(x); }
XF_INLINE floats sqrt(floats x) { return esimd::sqrt(x); }
XF_INLINE floats floor(floats x) { return esimd::rndd<float>(x); }
XF_INLINE floats fma(floats a, floats b, floats c) { return a * b + c; }  // IGC makes it a mad

XF_INLINE ints to_ints(lane_mask mask) { return select(mask, ints(1), ints(0)); }
XF_INLINE ints to_ints(floats x) { return esimd::saturate<int>(x); }
XF_INLINE float to_floats(int x) {
  return simd<float, 1>(esimd::convert<float>(simd<int, 1>(x)))[0];
}
XF_INLINE floats to_floats(ints x) { return esimd::convert<float>(x); }

// Returns one bit per lane.
XF_INLINE uint32_t bits_of(lane_mask mask) { return esimd::pack_mask(mask); }

XF_INLINE int lowest_of(ints x) { return esimd::hmin<int>(x); }
XF_INLINE ints at_most(ints i, int last) { return esimd::min<int>(i, ints(last)); }

// Returns the elements of a matrix at row q and columns k; row and col are the strides.
template <class T>
XF_INLINE floats value_at(const T* data, int64_t row, int q, int64_t col, ints k) {
  using Bits = UintOfSize<sizeof(T)>;
  const int first_k = k[0];
  const auto* first = reinterpret_cast<const Bits*>(data + q * row + first_k * col);
  const Offsets<kLanes> bytes =
      Offsets<kLanes>(k - first_k) * static_cast<uint32_t>(col * sizeof(T));
  simd<Bits, kLanes> bits = esimd::gather<Bits, kLanes>(first, bytes);
  return esimd::convert<float>(simd<T, kLanes>(bits.template bit_cast_view<T>()));
}

// Returns the elements at one column and a vector of rows.
template <class T>
XF_INLINE floats value_at(const T* data, int64_t row, ints q, int64_t col, int k) {
  return value_at(data, col, k, row, q);
}

// Floating-point elements are read as floats, integers as ints.
template <class T>
using ValueOf = std::conditional_t<std::is_integral_v<T>, int, float>;
template <class T, int N>
XF_INLINE simd<ValueOf<T>, N> value_at(const T* data, simd<int, N> i) {
  using Bits = UintOfSize<sizeof(T)>;
  simd<Bits, N> bits = esimd::gather<Bits, N>(reinterpret_cast<const Bits*>(data),
                                              Offsets<N>(i) * static_cast<uint32_t>(sizeof(T)));
  return esimd::convert<ValueOf<T>>(simd<T, N>(bits.template bit_cast_view<T>()));
}
template <class T>
XF_INLINE ValueOf<T> value_at(const T* data, int i) {
  return value_at(data, simd<int, 1>(i))[0];
}

// Adds each lane of x to the element at that lane's position, in increasing order of the positions.
// Lanes with the same position are summed first.
XF_INLINE void add_at(float* data, ints at, floats x) {
  constexpr int kDone = 0x7fffffff;
  for (int next = esimd::hmin<int>(at); next != kDone; next = esimd::hmin<int>(at)) {
    const lane_mask here = at == next;
    const simd<uint32_t, 1> byte = static_cast<uint32_t>(next) * 4u;
    simd<float, 1> sum = esimd::gather<float, 1>(data, byte);
    sum += esimd::reduce<float>(select(here, x, floats(0.f)), std::plus<>());
    esimd::scatter<float, 1>(data, byte, sum);
    at = select(here, ints(kDone), at);
  }
}

}  // namespace xeflash::xe
