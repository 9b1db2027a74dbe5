// Stores tiles; loads and stores values per row or per column.
#pragma once

#include "cpu/left.hpp"

namespace xeflash::cpu {

template <class M>
constexpr bool kRagged = false;
template <class T>
constexpr bool kRagged<RaggedRows<T>> = true;

// Stores the first `count` elements of x.
template <class T>
XF_INLINE void store_some(T* row, f32x16 x, int count) {
  if (count >= kLanes) return store_narrowed(row, x);
  T narrow[kLanes];
  store_narrowed(narrow, x);
  for (int i = 0; i < count; ++i) row[i] = narrow[i];
}

// Calls f(row, column, values) for 16 columns of one row at a time.
template <int R, int D, class F>
XF_INLINE void each_row_of(const Tile<R, D>& O, int rows, F f) {
  for (int r = 0; r < R / kLanes; ++r) {
    for (int d = 0; d < D; d += kLanes) {
      f32x16 v[kLanes];
      XF_UNROLL for (int i = 0; i < kLanes; ++i) v[i] = d + i < D ? O.at(d + i, r) : f32x16(0.f);
      transpose(v);
      XF_UNROLL for (int i = 0; i < kLanes; ++i) {
        if (r * kLanes + i < rows) f(r * kLanes + i, d, v[i]);
      }
    }
  }
}

template <int R, int D, class Rows>
XF_INLINE void store(const Rows& m, const Tile<R, D>& O) {
  each_row_of(O, m.size(), [&](int r, int d, f32x16 x) {
    auto* row = m.row(r) + d;
    if constexpr (kRagged<Rows>) {
      store_some(row, x, m.width - d);
    } else if (d + kLanes <= D) {
      store_narrowed(row, x);
    } else {
      store_narrowed<D % kLanes>(row, x);
    }
  });
}

template <int Count>
XF_INLINE f32x16 load_floats(const float* row) {
  f32x16 x(0.f);
  __builtin_memcpy(&x, row, Count * sizeof(float));
  return x;
}

// Adds to a matrix in memory: there = O + keep * there. Where keep is 0, what is there does not
// count, as it may be NaN.
template <int R, int D, class Rows>
XF_INLINE void add(const Rows& m, const Tile<R, D>& O, const ColVec<R>& keep) {
  each_row_of(O, m.size(), [&](int r, int d, f32x16 x) {
    const float kept = keep.x[r / kLanes][r % kLanes];
    float* row = m.row(r) + d;
    const auto sum = [&](f32x16 there) { return kept == 0.f ? x : x + there * kept; };
    if (d + kLanes <= D) {
      store_narrowed(row, sum(load_floats<kLanes>(row)));
    } else {
      store_narrowed<D % kLanes>(row, sum(load_floats<D % kLanes>(row)));
    }
  });
}

// Stores one value per row.
template <int R, class Rows>
XF_INLINE void store(const Rows& m, const ColVec<R>& v) {
  for (int i = 0; i < R && i < m.size(); ++i) *m.row(i) = v.x[i / kLanes][i % kLanes];
}
template <int R, class Rows>
XF_INLINE ColVec<R> load_values(const Rows& m) {
  ColVec<R> v;
  for (int i = 0; i < R; ++i) v.x[i / kLanes][i % kLanes] = *m.row_or_last(i);
  return v;
}

template <int R, class Rows>
XF_INLINE ColVec<R> load_values(const Rows& m, float otherwise) {  // for rows that do not exist
  ColVec<R> v(otherwise);
  for (int i = 0; i < R && i < m.size(); ++i) v.x[i / kLanes][i % kLanes] = *m.row(i);
  return v;
}
template <int C>
XF_INLINE Across<C> load_across(const Rows<const float>& m, float otherwise) {
  Across<C> v;
  for (int c = 0; c < C; ++c) v.x[c] = c < m.size() ? *m.row(c) : otherwise;
  return v;
}
template <int C, class Rows>
XF_INLINE void store(const Rows& m, const Across<C>& v) {
  for (int c = 0; c < C && c < m.size(); ++c) *m.row(c) = v.x[c];
}

template <int C>
struct AcrossRows {
  Rows<const float> rows;

  XF_INLINE explicit AcrossRows(const Line<const float>& line) : rows(line.rows()) {}
  XF_INLINE Across<C> at(int first, float otherwise) const {
    return load_across<C>(rows.from(first), otherwise);
  }
};

}  // namespace xeflash::cpu
