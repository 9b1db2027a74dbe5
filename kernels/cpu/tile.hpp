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
};
// Applies f to the values of 16 rows at a time.
template <class F, int R, class... More>
XF_INLINE ColVec<R> map(F f, const ColVec<R>& a, const More&... more) {
  ColVec<R> result;
  XF_UNROLL for (int r = 0; r < R / kLanes; ++r) result.x[r] = f(a.x[r], more.x[r]...);
  return result;
}
template <int R>
XF_INLINE ColVec<R> max(const ColVec<R>& a, const ColVec<R>& b) {
  return map([](f32x16 x, f32x16 y) { return max(x, y); }, a, b);
}
template <int R>
XF_INLINE void operator*=(ColVec<R>& a, const ColVec<R>& b) {
  a = map([](f32x16 x, f32x16 y) { return x * y; }, a, b);
}

// The sum of each row. Other backends may keep it in parts, one per lane, until the end.
template <int R>
using ColSum = ColVec<R>;

// Returns whether any row has |a| > limit.
template <int R>
XF_INLINE bool any_beyond(const ColVec<R>& a, float limit) {
  i32x16 beyond = magnitude(a.x[0]) > limit;
  XF_UNROLL for (int r = 1; r < R / kLanes; ++r) beyond |= magnitude(a.x[r]) > limit;
  return any(beyond);
}

constexpr int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

// Number of vectors of 16 rows that are processed together: as many as keep their sums in
// registers, and as divide the number of vectors.
constexpr int vectors_together(int vectors, int most) {
  return vectors % most == 0 ? most : vectors_together(vectors, most - 1);
}
template <int R>
constexpr int kTogether = vectors_together(R / kLanes, kHasAvx512 ? 4 : 1);

// R rows x C columns, as vectors of 16 rows. Vectors that are processed together lie side by side,
// column after column.
template <class V, int R, int C>
struct Columns {
  static_assert(R % (kTogether<R> * kLanes) == 0);
  alignas(64) V x[R / kLanes / kTogether<R>][C][kTogether<R>];

  XF_INLINE V& at(int column, int r) { return x[r / kTogether<R>][column][r % kTogether<R>]; }
  XF_INLINE const V& at(int column, int r) const {
    return x[r / kTogether<R>][column][r % kTogether<R>];
  }

  XF_INLINE void fill(V value) {
    each_vector(C, [&](V& v, int, int) { v = value; });
  }
  // Calls f(vector, column, r) for the first `columns` columns.
  template <class F>
  XF_INLINE void each_vector(int columns, F f) {
    for (int r0 = 0; r0 < R / kLanes; r0 += kTogether<R>) {
      for (int c = 0; c < columns; ++c) {
        XF_UNROLL for (int r = 0; r < kTogether<R>; ++r) f(at(c, r0 + r), c, r0 + r);
      }
    }
  }
};

// R rows x C columns of fp32. The last tile of a row may use fewer columns. For AMX, which writes
// 32 columns at a time, there is room for a multiple of 32.
template <int R, int C>
struct Tile : Columns<f32x16, R, round_up(C, kIsa == Isa::kAmxBf16 ? 32 : 1)> {
  int cols = C;  // in use; an even number
};

// V's rows are added to O itself, whatever their elements, and P is the same for all of them.
template <class Tile, class E>
using OutputOf = Tile;
template <class Probs, class E>
using ProbsOf = Probs;
template <class Tile>
XF_INLINE Tile& settled(Tile& O) {
  return O;
}

// The number of columns of a block that some row sees, for each set of rows that are processed
// together. The other columns need no product.
struct AllColumns {
  XF_INLINE int of(int, int cols) const { return cols; }
};
template <int R>
struct ColumnsSeen {
  int most[R / kLanes / kTogether<R>];
  XF_INLINE int of(int r0, int cols) const {
    const int n = most[r0 / kTogether<R>];
    return n < cols ? n : cols;
  }
};
// up_to(row) is the number of columns that `row` and the rows before it see.
template <int R, class F>
XF_INLINE ColumnsSeen<R> columns_seen(int row, F up_to) {
  constexpr int kRows = kTogether<R> * kLanes;
  ColumnsSeen<R> seen;
  for (int i = 0; i < R / kRows; ++i) seen.most[i] = up_to(row + (i + 1) * kRows - 1);
  return seen;
}

template <int R, int C>
XF_INLINE void fill(Columns<f32x16, R, C>& t, float value) {
  t.fill(f32x16(value));
}

// Calls f(value, row, column) for every element; row is a vector here, column a scalar.
template <int R, int C, class F>
XF_INLINE void each(Tile<R, C>& t, int row0, int col0, F f) {
  t.each_vector(t.cols, [&](f32x16& v, int c, int r) __attribute__((always_inline)) {
    v = f(v, row0 + r * kLanes + lane_index(), col0 + c);
  });
}

// An int for each row or column of a tile.
template <int N>
struct Numbers {
  static constexpr int kCount = round_up(N, kLanes);
  alignas(64) i32x16 x[kCount / kLanes];
  template <class F>
  XF_INLINE explicit Numbers(F f) {
    for (int i = 0; i < kCount; i += kLanes) x[i / kLanes] = f(lane_index() + i);
  }
  XF_INLINE int at(int i) const { return reinterpret_cast<const int*>(x)[i]; }
};

// Calls f(value, the rows' numbers, the column's number, rows, column) for every element.
template <int R, int C, class F>
XF_INLINE void each(Tile<R, C>& t, const Numbers<R>& rows, const Numbers<C>& columns, int row0,
                    int col0, F f) {
  t.each_vector(t.cols, [&](f32x16& v, int c, int r) __attribute__((always_inline)) {
    v = f(v, rows.x[r], columns.at(c), row0 + r * kLanes + lane_index(), col0 + c);
  });
}
// Calls f(value, the rows' numbers, the column's number) for every element.
template <int R, int C, class F>
XF_INLINE void each(Tile<R, C>& t, const Numbers<R>& rows, const Numbers<C>& columns, F f) {
  each(t, rows, columns, 0, 0,
       [&](auto s, auto a, auto b, auto, auto)
           __attribute__((always_inline)) { return f(s, a, b); });
}

// Calls f(value, slope, row, column), which changes an element of each of the two tiles.
template <int R, int C, class F>
XF_INLINE void each(Tile<R, C>& t, Tile<R, C>& slopes, int row0, int col0, F f) {
  t.each_vector(t.cols, [&](f32x16& v, int c, int r) __attribute__((always_inline)) {
    f(v, slopes.at(c, r), row0 + r * kLanes + lane_index(), col0 + c);
  });
}

// log2 P = S * scale - m, computed where it is used.
template <class Scores, class Max>
struct LogProbs {
  const Scores& S;
  float scale;
  Max m;
  XF_INLINE void operator=(const LogProbs& other) { m = other.m; }  // of the same S
};
template <int R, int C>
XF_INLINE LogProbs<Tile<R, C>, ColVec<R>> log_probs(const Tile<R, C>& S, float scale,
                                                    const ColVec<R>& m) {
  return {S, scale, m};
}

template <int R, int C>
XF_INLINE ColVec<R> row_max(const Tile<R, C>& t) {
  ColVec<R> m;
  for (int r0 = 0; r0 < R / kLanes; r0 += kTogether<R>) {
    f32x16 even[kTogether<R>], odd[kTogether<R>];  // two chains hide the latency of max
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
// Returns whether any log2 P is above a limit.
template <int R, int C>
XF_INLINE bool any_above(const LogProbs<Tile<R, C>, ColVec<R>>& X, float limit) {
  const ColVec<R> most = row_max(X.S);
  i32x16 above = {};
  XF_UNROLL for (int r = 0; r < R / kLanes; ++r) {
    above |= fma(most.x[r], X.scale, -X.m.x[r]) > f32x16(limit);
  }
  return any(above);
}

template <int R, int C>
XF_INLINE void add_row_sums(ColSum<R>& l, const Tile<R, C>& t) {
  for (int r = 0; r < R / kLanes; ++r) {
    for (int c = 0; c < t.cols; ++c) l.x[r] += t.at(c, r);
  }
}

// One value per column.
template <int C>
struct Across {
  float x[C];
};
template <class F, int C, class... More>
XF_INLINE Across<C> map(F f, const Across<C>& a, const More&... more) {
  Across<C> result;
  for (int c = 0; c < C; c += kLanes) {
    store_as(&result.x[c], f32x16(f(load_as<f32x16>(&a.x[c]), load_as<f32x16>(&more.x[c])...)));
  }
  return result;
}

// t = 2^(t * scale - x), where x is a value per row or per column.
template <int Degree, int R, int C>
XF_INLINE void exp2_minus(Tile<R, C>& t, float scale, const ColVec<R>& x) {
  t.each_vector(t.cols, [&](f32x16& v, int, int r) __attribute__((always_inline)) {
    v = exp2<Degree>(fma(v, scale, -x.x[r]));
  });
}
template <int Degree, int R, int C>
XF_INLINE void exp2_minus(Tile<R, C>& t, float scale, const Across<C>& x) {
  t.each_vector(t.cols, [&](f32x16& v, int c, int) __attribute__((always_inline)) {
    v = exp2<Degree>(fma(v, scale, f32x16(-x.x[c])));
  });
}

// t = min(t - x, 0), where x is a value per row or per column; t stays as it is where x is 0.
XF_INLINE f32x16 lowered(f32x16 v, f32x16 x) {
  const f32x16 most = select(x == f32x16(0.f), f32x16(kInf), f32x16(0.f));
  v -= x;
  return v > most ? most : v;  // NaN stays
}
template <int R, int C>
XF_INLINE void lower(Tile<R, C>& t, const ColVec<R>& x) {
  t.each_vector(t.cols, [&](f32x16& v, int, int r)
                            __attribute__((always_inline)) { v = lowered(v, x.x[r]); });
}
template <int R, int C>
XF_INLINE void lower(Tile<R, C>& t, const Across<C>& x) {
  t.each_vector(t.cols, [&](f32x16& v, int c, int)
                            __attribute__((always_inline)) { v = lowered(v, f32x16(x.x[c])); });
}
template <int C>
XF_INLINE bool any_beyond(const Across<C>& a, float limit) {
  i32x16 beyond = {};
  XF_UNROLL for (int c = 0; c < C; c += kLanes) {
    beyond |= magnitude(load_as<f32x16>(&a.x[c])) > limit;
  }
  return any(beyond);
}

// dP = P (dP - Delta), where Delta is a value per row or per column.
template <int R, int C>
XF_INLINE void weigh(Tile<R, C>& dP, const Tile<R, C>& P, const ColVec<R>& Delta) {
  dP.each_vector(dP.cols, [&](f32x16& v, int c, int r) __attribute__((always_inline)) {
    v = (v - Delta.x[r]) * P.at(c, r);
  });
}
template <int R, int C>
XF_INLINE void weigh(Tile<R, C>& dP, const Tile<R, C>& P, const Across<C>& Delta) {
  dP.each_vector(dP.cols, [&](f32x16& v, int c, int r) __attribute__((always_inline)) {
    v = (v - Delta.x[c]) * P.at(c, r);
  });
}
template <int R, int C>
XF_INLINE void operator*=(Tile<R, C>& a, const Tile<R, C>& b) {
  a.each_vector(a.cols, [&](f32x16& v, int c, int r) { v *= b.at(c, r); });
}
template <int R, int C>
XF_INLINE void operator+=(Tile<R, C>& a, const Tile<R, C>& b) {
  a.each_vector(b.cols, [&](f32x16& v, int c, int r) { v += b.at(c, r); });
}
template <int R, int C>
XF_INLINE Across<C> column_sums(const Tile<R, C>& t) {
  Across<C> sums;
  for (int c = 0; c < C; ++c) {
    f32x16 sum = t.at(c, 0);
    for (int r = 1; r < R / kLanes; ++r) sum += t.at(c, r);
    sums.x[c] = reduce_add(sum);
  }
  return sums;
}

template <int R, int C>
XF_INLINE void operator*=(Tile<R, C>& t, const ColVec<R>& s) {
  t.each_vector(C, [&](f32x16& v, int, int r) { v *= s.x[r]; });
}
template <int R, int C>
XF_INLINE void operator-=(Tile<R, C>& t, const ColVec<R>& s) {
  t.each_vector(t.cols, [&](f32x16& v, int, int r) { v -= s.x[r]; });
}

}  // namespace xeflash::cpu
