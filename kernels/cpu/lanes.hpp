// The vectors that changes to scores are computed with: values and positions of 16 rows of a
// column, or of 16 columns of a row, and array elements at those positions.
#pragma once

#include "cpu/vec.hpp"

namespace xeflash::cpu {

using Floats = f32x16;
using Ints = i32x16;
using Bools = i32x16;  // result of a comparison: -1 where it holds, else 0

XF_INLINE i32x16 max(i32x16 a, i32x16 b) { return a > b ? a : b; }
XF_INLINE f32x16 exp2(f32x16 x) { return select(x > f32x16(127.f), f32x16(kInf), exp2<6>(x)); }
XF_INLINE f32x16 log2_of_any(f32x16 x) {
  const f32x16 inf = kInf, nan = __builtin_nanf("");
  const f32x16 positive = select(x == inf, inf, log2(x));
  return select(x > f32x16(0.f), positive, select(x == f32x16(0.f), -inf, nan));
}
XF_INLINE f32x16 sqrt(f32x16 x) { return __builtin_elementwise_sqrt(x); }
XF_INLINE f32x16 floor(f32x16 x) { return __builtin_elementwise_floor(x); }

XF_INLINE i32x16 select(i32x16 c, i32x16 a, i32x16 b) { return c ? a : b; }
XF_INLINE i32x16 select(bool c, i32x16 a, i32x16 b) { return c ? a : b; }

XF_INLINE i32x16 to_bools(bool x) { return i32x16(-static_cast<int>(x)); }
XF_INLINE i32x16 to_ints(i32x16 mask) { return -mask; }
// C++ leaves open what becomes of floats beyond all ints.
XF_INLINE i32x16 to_ints(f32x16 x) {
  constexpr int kMost = 0x7fffffff;
  const i32x16 fits = magnitude(x) < f32x16(0x1p31f);
  const i32x16 nearest = select(x > f32x16(0.f), i32x16(kMost), i32x16(-kMost - 1));
  const i32x16 other = select(x == x, nearest, i32x16(0));
  return select(fits, __builtin_convertvector(select(fits, x, f32x16(0.f)), i32x16), other);
}
// These use SPIR-V's own operation: the compiler would turn the conversion of ints that are 0 or -1
// into a conversion of bits, which gives 0 and 1.
XF_INLINE float to_floats(int x) { return __spirv_ConvertSToF_Rfloat(x); }
XF_INLINE f32x16 to_floats(i32x16 x) { return __spirv_ConvertSToF_Rfloat16(x); }

// Returns one bit per lane.
XF_INLINE uint32_t bits_of(i32x16 mask) {
  i32x16 bits = mask & (i32x16(1) << lane_index());
  XF_UNROLL for (int d = 8; d > 0; d /= 2) bits |= swap_lanes(bits, d);
  return static_cast<uint32_t>(bits[0]);
}

XF_INLINE int lowest_of(i32x16 x) {
  XF_UNROLL for (int d = 8; d > 0; d /= 2) {
    const i32x16 other = swap_lanes(x, d);
    x = select(x < other, x, other);
  }
  return x[0];
}
XF_INLINE int at_most(int i, int last) { return i < last ? i : last; }
XF_INLINE i32x16 at_most(i32x16 i, int last) { return i < i32x16(last) ? i : i32x16(last); }

XF_INLINE float to_float(uint8_t x) { return x; }

// Returns the elements of a matrix at rows q and column k; row and col are the strides.
template <class T>
XF_INLINE f32x16 value_at(const T* data, int64_t row, i32x16 q, int64_t col, int k) {
  const T* p = data + k * col;
  if (row == 0) return f32x16(to_float(*p));
  f32x16 v;
  XF_UNROLL for (int i = 0; i < kLanes; ++i) v[i] = to_float(p[q[i] * row]);
  return v;
}
// Returns the elements at one row and a vector of columns.
template <class T>
XF_INLINE f32x16 value_at(const T* data, int64_t row, int q, int64_t col, i32x16 k) {
  return value_at(data, col, k, row, q);
}

// Floating-point elements are read as floats, integers as ints.
template <class T>
XF_INLINE auto value_at(const T* data, int i) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<int>(data[i]);
  else
    return to_float(data[i]);
}
template <class T>
XF_INLINE auto value_at(const T* data, i32x16 at) {
  std::conditional_t<std::is_integral_v<T>, i32x16, f32x16> v;
  XF_UNROLL for (int i = 0; i < kLanes; ++i) v[i] = value_at(data, at[i]);
  return v;
}

// Adds each lane of x to the element at that lane's position, lane after lane. If all lanes have
// the same position, they are summed first.
XF_INLINE void add_at(float* data, i32x16 at, f32x16 x) {
  const int first = at[0];
  if (!any(at != i32x16(first))) {
    data[first] += reduce_add(x);
  } else {
    XF_UNROLL for (int i = 0; i < kLanes; ++i) data[at[i]] += x[i];
  }
}

}  // namespace xeflash::cpu
