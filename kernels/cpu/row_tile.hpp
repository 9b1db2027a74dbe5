// Row tiles of the CPU backend, for few rows: lane = column.
#pragma once

#include "cpu/tile.hpp"

namespace xeflash::cpu {

// One value per row.
template <int R>
struct RowVec {
  float x[R];
  XF_INLINE RowVec(float value = 0.f) { XF_UNROLL for (int r = 0; r < R; ++r) x[r] = value; }
  XF_INLINE float operator[](int r) const { return x[r]; }
};
template <class F, int R, class... More>
XF_INLINE RowVec<R> map(F f, const RowVec<R>& a, const More&... more) {
  RowVec<R> result;
  XF_UNROLL for (int r = 0; r < R; ++r) result.x[r] = f(a.x[r], more.x[r]...);
  return result;
}
template <int R>
XF_INLINE RowVec<R> max(RowVec<R> a, const RowVec<R>& b) {
  XF_UNROLL for (int r = 0; r < R; ++r) a.x[r] = max(a.x[r], b.x[r]);
  return a;
}
template <int R>
XF_INLINE bool any_beyond(const RowVec<R>& a, float limit) {
  bool beyond = false;
  XF_UNROLL for (int r = 0; r < R; ++r) beyond |= magnitude(a.x[r]) > limit;
  return beyond;
}

// The sum of each row, in 16 parts that are added up at the end.
template <int R>
struct RowSum {
  f32x16 x[R];
  XF_INLINE RowSum() { XF_UNROLL for (int r = 0; r < R; ++r) x[r] = 0.f; }
  XF_INLINE operator RowVec<R>() const {
    RowVec<R> sum;
    for (int r = 0; r < R; ++r) sum.x[r] = reduce_add(x[r]);
    return sum;
  }
};
template <int R>
XF_INLINE void operator*=(RowSum<R>& l, const RowVec<R>& s) {
  XF_UNROLL for (int r = 0; r < R; ++r) l.x[r] *= s.x[r];
}

template <int R, int C>
struct RowTile {
  static constexpr int kVecs = (C + kLanes - 1) / kLanes;
  alignas(64) f32x16 x[R][kVecs];
};
// P stays in fp32, as nothing is gained by rounding it.
template <class T, int R, int C, class E>
using RowProbs = RowTile<R, C>;
template <class T, int R, int C, class E>
using RowOutput = RowTile<R, C>;
template <int R, int C>
XF_INLINE void fill(RowTile<R, C>& t, float value) {
  XF_NO_UNROLL for (int r = 0; r < R; ++r) {
    XF_UNROLL for (int c = 0; c < (C + kLanes - 1) / kLanes; ++c) t.x[r][c] = value;
  }
}
template <int R, class F>
XF_INLINE void each_row(F f) {
  XF_NO_UNROLL for (int r = 0; r < R; ++r) f(r);
}
// Calls f(value, column) along one row; column is a vector.
template <int R, int C, class F>
XF_INLINE void each_in_row(RowTile<R, C>& t, int r, int col0, F f) {
  XF_UNROLL for (int c = 0; c < (C + kLanes - 1) / kLanes; ++c) t.x[r][c] =
      f(t.x[r][c], col0 + c * kLanes + lane_index());
}
template <int R, int C>
XF_INLINE RowVec<R> row_max(const RowTile<R, C>& t) {
  RowVec<R> m;
  XF_NO_UNROLL for (int r = 0; r < R; ++r) {
    f32x16 v = t.x[r][0];
    XF_UNROLL for (int c = 1; c < (C + kLanes - 1) / kLanes; ++c) v = max(v, t.x[r][c]);
    m.x[r] = reduce_max(v);
  }
  return m;
}
template <int R, int C>
XF_INLINE LogProbs<RowTile<R, C>, RowVec<R>> log_probs(const RowTile<R, C>& S, float scale,
                                                       const RowVec<R>& m) {
  return {S, scale, m};
}
template <int R, int C>
XF_INLINE bool any_above(const LogProbs<RowTile<R, C>, RowVec<R>>& X, float limit) {
  const RowVec<R> most = row_max(X.S);
  bool above = false;
  XF_UNROLL for (int r = 0; r < R; ++r) { above |= most.x[r] * X.scale - X.m.x[r] > limit; }
  return above;
}
// P = 2^(X - kExp2Headroom), l += row sums of P.
template <int Degree, int R, int C>
XF_INLINE void exp2_and_sum(RowTile<R, C>& P, const LogProbs<RowTile<R, C>, RowVec<R>>& X,
                            RowSum<R>& l) {
  XF_NO_UNROLL for (int r = 0; r < R; ++r) {
    XF_UNROLL for (int c = 0; c < (C + kLanes - 1) / kLanes; ++c) {
      P.x[r][c] = exp2<Degree, kExp2Headroom>(fma(X.S.x[r][c], X.scale, f32x16(-X.m.x[r])));
      l.x[r] += P.x[r][c];
    }
  }
}
template <int R, int C>
XF_INLINE void operator+=(RowSum<R>& l, const RowTile<R, C>& t) {
  XF_NO_UNROLL for (int r = 0; r < R; ++r) {
    XF_UNROLL for (int c = 0; c < (C + kLanes - 1) / kLanes; ++c) l.x[r] += t.x[r][c];
  }
}
template <int R, int C>
XF_INLINE void operator*=(RowTile<R, C>& t, const RowVec<R>& s) {
  XF_NO_UNROLL for (int r = 0; r < R; ++r) {
    XF_UNROLL for (int c = 0; c < (C + kLanes - 1) / kLanes; ++c) t.x[r][c] *= s.x[r];
  }
}

template <int R, int C>
XF_INLINE void operator-=(RowTile<R, C>& t, const RowVec<R>& s) {
  XF_NO_UNROLL for (int r = 0; r < R; ++r) {
    XF_UNROLL for (int c = 0; c < (C + kLanes - 1) / kLanes; ++c) t.x[r][c] -= s.x[r];
  }
}

}  // namespace xeflash::cpu
