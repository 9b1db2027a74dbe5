// A work-item goes through its rows alone, so there is nothing to exchange.
#pragma once

#include "cpu/lanes.hpp"
#include "products/sample_params.hpp"

namespace xeflash::cpu {

constexpr int kBlock = 64;
using Words = u32x16;

XF_INLINE void allocate_turns() {}
template <class X, class Op>
XF_INLINE X fold_turns(X x, Op) {
  return x;
}

template <class T>
struct Row {
  const T* data;
  int columns;

  XF_INLINE Row(const SampleParams& p, int row)
      : data(static_cast<const T*>(p.logits) + int64_t{row} * p.logits_row), columns(p.columns) {}
  XF_INLINE f32x16 at(int column) const {
    f32x16 v;
    if (column + kLanes <= columns) {
      v = load_widened(data + column);
    } else {
      for (int i = 0; i < kLanes; ++i)
        v[i] = column + i < columns ? to_float(data[column + i]) : -kInf;
    }
    return select(v == v, v, f32x16(-kInf));
  }
};

XF_INLINE bool is_any(i32x16 mask) { return any(mask); }
XF_INLINE i32x16 as_ints(f32x16 x) { return bit_cast<i32x16>(x); }
XF_INLINE u32x16 to_words(i32x16 x) { return bit_cast<u32x16>(x); }
XF_INLINE f32x16 floats_of_halves(u32x16 x) { return to_floats(bit_cast<i32x16>(x)); }
XF_INLINE float largest_of(f32x16 x) { return reduce_max(x); }
XF_INLINE float sum_of_lanes(f32x16 x) { return reduce_add(x); }
XF_INLINE int sum_of_lanes(i32x16 x) {
  XF_UNROLL for (int d = 8; d > 0; d /= 2) x += swap_lanes(x, d);
  return x[0];
}

template <class T>
XF_INLINE T number_of_row(const PerRow<T>& x, int row) {
  return x.data ? x.data[row] : x.value;
}
XF_INLINE void halves_of_row(const PerRow<int64_t>& x, int row, uint32_t (&halves)[2]) {
  const auto bits = static_cast<uint64_t>(number_of_row(x, row));
  halves[0] = static_cast<uint32_t>(bits), halves[1] = static_cast<uint32_t>(bits >> 32);
}
XF_INLINE void store_token(uint32_t* tokens, int row, int token) {
  reinterpret_cast<int64_t*>(tokens)[row] = token;
}

}  // namespace xeflash::cpu
