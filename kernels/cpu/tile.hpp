// Tiles of the CPU backend: lane = row. A column of 16 rows is one vector, so softmax along a row
// needs no cross-lane step. Tiles live in the work-item's memory (L1/L2); the matrix products block
// them into registers.
#pragma once

#include "cpu/vec.hpp"

namespace xeflash::cpu {

// One value per row.
template <int R>
struct ColVec {
  static constexpr int kVecs = R / kLanes;
  f32x16 x[kVecs];

  XF_INLINE ColVec(float value = 0.f) { XF_UNROLL for (int r = 0; r < kVecs; ++r) x[r] = value; }
  template <class F>
  XF_INLINE void map(F f) {
    XF_UNROLL for (int r = 0; r < kVecs; ++r) x[r] = f(x[r], r);
  }
};
template <int R>
XF_INLINE ColVec<R> max(const ColVec<R>& a, const ColVec<R>& b) {
  ColVec<R> c;
  c.map([&](f32x16, int r) { return max(a.x[r], b.x[r]); });
  return c;
}
template <int R>
XF_INLINE void operator*=(ColVec<R>& a, const ColVec<R>& b) {
  a.map([&](f32x16 v, int r) { return v * b.x[r]; });
}
template <int R>
XF_INLINE ColVec<R> operator*(ColVec<R> a, float b) {
  a.map([&](f32x16 v, int) { return v * b; });
  return a;
}
template <int R>
XF_INLINE ColVec<R> operator-(ColVec<R> a, const ColVec<R>& b) {
  a.map([&](f32x16 v, int r) { return v - b.x[r]; });
  return a;
}
template <int R>
XF_INLINE ColVec<R> exp2(ColVec<R> a) {
  a.map([&](f32x16 v, int) { return exp2<6>(v); });
  return a;
}
// 1 / a, and 0 where a is 0.
template <int R>
XF_INLINE ColVec<R> inverse_or_zero(ColVec<R> a) {
  a.map([&](f32x16 v, int) { return select(v == f32x16(0.f), f32x16(0.f), 1.f / v); });
  return a;
}
// ln(2^m l), and `empty` where l is 0. An infinite m is the answer, although l is no number then.
template <int R>
XF_INLINE ColVec<R> log_sum_exp(ColVec<R> m, const ColVec<R>& l, float empty) {
  m.map([&](f32x16 v, int r) {
    const f32x16 lse = (v + log2(l.x[r])) * 0.6931471805599453f;
    const f32x16 finite = select(v == f32x16(__builtin_inff()), v, lse);
    return select(l.x[r] == f32x16(0.f), f32x16(empty), finite);
  });
  return m;
}

// 2^(a * scale - m), the exponent rounded once, and at most 1 or no number.
template <int R>
XF_INLINE ColVec<R> exp2_of_difference(ColVec<R> a, float scale, const ColVec<R>& m) {
  a.map([&](f32x16 v, int r) {
    const f32x16 x = fma(v, scale, -m.x[r]);
    return exp2<6>(x < f32x16(1.f) ? x : f32x16(1.f));
  });
  return a;
}

// Row sums; a backend may keep them per lane until the end.
template <int R>
using ColSum = ColVec<R>;

// Does any row have a > b + margin?
template <int R>
XF_INLINE bool any_above(const ColVec<R>& a, const ColVec<R>& b, float margin) {
  f32x16 worst = a.x[0] - b.x[0];
  XF_UNROLL for (int r = 1; r < R / kLanes; ++r) worst = max(worst, a.x[r] - b.x[r]);
  return reduce_max(worst) > margin;
}

constexpr int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

// Vectors of 16 rows that are taken together: as many as leave their sums in registers.
template <int R>
constexpr int kTogether = kHasAvx512 ? (R / kLanes < 4 ? R / kLanes : 4) : 1;

// R rows x C columns, vectors of 16 rows. Those that are taken together lie together, column after
// column.
template <class V, int R, int C>
struct Columns {
  static_assert(R % (kTogether<R> * kLanes) == 0);
  alignas(64) V x[R / kLanes / kTogether<R>][C][kTogether<R>];

  XF_INLINE V& at(int column, int r) { return x[r / kTogether<R>][column][r % kTogether<R>]; }
  XF_INLINE const V& at(int column, int r) const {
    return x[r / kTogether<R>][column][r % kTogether<R>];
  }

  // f(vector, column, r) for the first `columns`
  template <class F>
  XF_INLINE void each_vector(int columns, F f) {
    for (int r0 = 0; r0 < R / kLanes; r0 += kTogether<R>) {
      for (int c = 0; c < columns; ++c) {
        XF_UNROLL for (int r = 0; r < kTogether<R>; ++r) f(at(c, r0 + r), c, r0 + r);
      }
    }
  }
};

// R rows x C columns of fp32. The last tile of a row may use fewer columns; AMX has room for 32 at
// a time.
template <int R, int C>
struct Tile : Columns<f32x16, R, round_up(C, kIsa == Isa::kAmxBf16 ? 32 : 1)> {
  int cols = C;  // an even number
};

template <int R, int C>
XF_INLINE void fill(Tile<R, C>& t, float value) {
  t.each_vector(C, [&](f32x16& v, int, int) { v = f32x16(value); });
}

// f(value, row, column) for every element; row is a vector here, column a scalar.
template <int R, int C, class F>
XF_INLINE void each(Tile<R, C>& t, int row0, int col0, F f) {
  t.each_vector(t.cols, [&](f32x16& v, int c, int r) __attribute__((always_inline)) {
    v = f(v, row0 + r * kLanes + lane_index(), col0 + c);
  });
}

template <int R, int C>
XF_INLINE ColVec<R> row_max(const Tile<R, C>& t) {
  ColVec<R> m;
  for (int r0 = 0; r0 < R / kLanes; r0 += kTogether<R>) {
    f32x16 even[kTogether<R>], odd[kTogether<R>];  // two chains: a maximum has a latency
    XF_UNROLL for (int r = 0; r < kTogether<R>; ++r) {
      even[r] = t.at(0, r0 + r);
      odd[r] = t.at(1, r0 + r);
    }
    for (int c = 2; c < t.cols; c += 2) {
      XF_UNROLL for (int r = 0; r < kTogether<R>; ++r) {
        even[r] = max(even[r], t.at(c, r0 + r));
        odd[r] = max(odd[r], t.at(c + 1, r0 + r));
      }
    }
    XF_UNROLL for (int r = 0; r < kTogether<R>; ++r) m.x[r0 + r] = max(even[r], odd[r]);
  }
  return m;
}

// t = 2^(t * scale - m)
template <int Degree, int R, int C>
XF_INLINE void exp2_of(Tile<R, C>& t, float scale, const ColVec<R>& m) {
  t.each_vector(C, [&](f32x16& v, int, int r) __attribute__((always_inline)) {
    v = exp2<Degree>(fma(v, scale, -m.x[r]));
  });
}

template <int R, int C>
XF_INLINE void operator*=(Tile<R, C>& t, const ColVec<R>& s) {
  t.each_vector(C, [&](f32x16& v, int, int r) { v *= s.x[r]; });
}

}  // namespace xeflash::cpu
