// Elements of a score-shaped array for 16 rows of a column, or 16 columns of a row.
#pragma once

#include "cpu/vec.hpp"

namespace xeflash::cpu {

template <class S>
XF_INLINE S to_floats(i32x16 v) {
  return __builtin_convertvector(v, f32x16);
}

XF_INLINE int at_most(int i, int last) { return i < last ? i : last; }
XF_INLINE i32x16 at_most(i32x16 i, int last) { return i < i32x16(last) ? i : i32x16(last); }

XF_INLINE float to_float(uint8_t x) { return x; }

template <class S, class T>
XF_INLINE f32x16 gather(const T* data, int64_t row, i32x16 q, int64_t col, int k) {
  const T* p = data + k * col;
  if (row == 0) return f32x16(to_float(*p));
  f32x16 v;
  XF_UNROLL for (int i = 0; i < kLanes; ++i) v[i] = to_float(p[q[i] * row]);
  return v;
}
template <class S, class T>
XF_INLINE f32x16 gather(const T* data, int64_t row, int q, int64_t col, i32x16 k) {
  return gather<S>(data, col, k, row, q);
}

}  // namespace xeflash::cpu
