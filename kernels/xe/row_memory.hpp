// Single rows between memory and row tiles, and what happens to them on the way.
#pragma once

#include "xe/lanes.hpp"
#include "xe/row_choice.hpp"

namespace xeflash::xe {

template <class T, int D>
XF_INLINE void load_row(RowMajor<1, D>& x, const T* row) {
  load(x, Rows<const T>{row, 0, 1});
}

template <int D>
XF_INLINE float abs_max(const RowMajor<1, D>& x) {
  floats largest = 0.f;
  XF_UNROLL for (int c = 0; c < x.kChunks; ++c) {
    largest = max(largest, esimd::abs<float>(x.row(0, c)));
  }
  return fold_rows<1, kLanes>(largest, [](auto a, auto b) { return esimd::max<float>(a, b); })[0];
}

// O += w x for one row.
template <class T, int D>
XF_INLINE void add_scaled(RowMajor<1, D>& O, const T* row, float w) {
  each_in_memory<D>(row, true, [&](auto x, int c) { O.template columns<x.length>(0, c) += x * w; });
}

// Rotates the pairs of the first `dims` columns of what was loaded from `row`: neighbours if
// interleaved, else the columns of the two halves. A lane fetches its partner from memory.
template <class T, int D>
XF_INLINE void rotate(RowMajor<1, D>& x, const T* row, const T* cos, const T* sin, int dims,
                      bool interleaved) {
  const int half = dims / 2;
  each_in_row(x, 0, 0, [&](floats a, ints column) {
    const ints c = at_most(column, dims - 1);
    ints partner, pair;
    lane_mask second;
    if (interleaved) {
      second = (c & 1) != 0;
      partner = c ^ 1;
      pair = c >> 1;
    } else {
      second = c >= half;
      partner = c + half;
      partner.merge(c - half, second);
      pair = c;
      pair.merge(c - half, second);
    }
    const floats turned = value_at(row, partner) * value_at(sin, pair);
    const floats rotated = a * value_at(cos, pair) + select(second, turned, floats(-turned));
    return select(column < dims, rotated, a);
  });
}

}  // namespace xeflash::xe
