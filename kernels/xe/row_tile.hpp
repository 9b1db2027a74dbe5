// Row tiles of the Xe backend, for few rows on the vector unit: lane = column. As in tiles of many
// rows, a value per row is in a ColVec, and lanes along a row stay apart as long as they can.
#pragma once

#include "xe/quantised.hpp"
#include "xe/tile.hpp"

namespace xeflash::xe {

template <int R>
using RowVec = ColVec<R>;
template <int R>
using RowSum = ColSum<R>;

constexpr int kWide = 2 * kLanes;  // lanes of one instruction of the vector unit

// Rows one after the other, each in consecutive registers, for the vector unit.
template <int R, int C>
struct RowMajor {
  static constexpr int kColumns = round_up(C, kWide), kChunks = round_up(C, kLanes) / kLanes;
  static constexpr int kSharedBytes = 0;
  simd<float, R * kColumns> x;

  // Returns N columns of row r, from column c on.
  template <int N>
  XF_INLINE auto columns(int r, int c) {
    return x.template select<N, 1>(r * kColumns + c);
  }
  template <int N>
  XF_INLINE simd<float, N> columns(int r, int c) const {
    return part<N>(x, r * kColumns + c);
  }
  // Returns one value of row r in all of N lanes.
  template <int N>
  XF_INLINE simd<float, N> broadcast(int r, int c) const {
    return x.template replicate_w<N, 1>(r * kColumns + c);
  }
  XF_INLINE auto row(int r, int chunk) { return columns<kLanes>(r, chunk * kLanes); }
  XF_INLINE floats row(int r, int chunk) const { return columns<kLanes>(r, chunk * kLanes); }
};

// Rows are registers with fixed names: nothing may be indexed at run time.
template <int R, class F>
XF_INLINE void each_row(F f) {
  XF_UNROLL for (int r = 0; r < R; ++r) f(r);
}
// Calls f(value, column) along one row; column is a vector.
template <template <int, int> class AnyTile, int R, int C, class F>
XF_INLINE void each_in_row(AnyTile<R, C>& t, int r, int col0, F f) {
  XF_UNROLL for (int c = 0; c < t.kChunks; ++c) {
    t.row(r, c) = f(floats(t.row(r, c)), lane_index() + (col0 + c * kLanes));
  }
}
template <int R, int C>
XF_INLINE void fill(RowMajor<R, C>& t, float value) {
  t.x = value;
}
template <int R, int C>
XF_INLINE ColMax<R> row_max(const RowMajor<R, C>& t) {
  ColMax<R> m;
  XF_UNROLL for (int r = 0; r < R; ++r) {
    floats most = t.row(r, 0);
    XF_UNROLL for (int c = 1; c < t.kChunks; ++c) most = max(most, t.row(r, c));
    m.x.template select<kLanes, 1>(r * kLanes) = most;
  }
  return m;
}
// log2 P = S * scale - m
template <int R, int C>
XF_INLINE RowMajor<R, C> log_probs(const RowMajor<R, C>& S, float scale, const RowVec<R>& m) {
  RowMajor<R, C> X;
  XF_UNROLL for (int r = 0; r < R; ++r) {
    XF_UNROLL for (int c = 0; c < S.kChunks; ++c) X.row(r, c) = S.row(r, c) * scale - m[r];
  }
  return X;
}
template <int R, int C>
XF_INLINE bool any_above(const RowMajor<R, C>& t, float limit) {
  floats most = t.row(0, 0);
  XF_UNROLL for (int r = 0; r < R; ++r) {
    XF_UNROLL for (int c = 0; c < t.kChunks; ++c) most = max(most, t.row(r, c));
  }
  return (most > limit).any();
}
// P = 2^X, l += row sums of P.
template <int Degree, int R, int C>
XF_INLINE void exp2_and_sum(RowMajor<R, C>& P, const RowMajor<R, C>& X, RowSum<R>& l) {
  XF_UNROLL for (int r = 0; r < R; ++r) {
    XF_UNROLL for (int c = 0; c < X.kChunks; ++c) {
      const floats p = esimd::exp2(X.row(r, c));
      P.row(r, c) = p;
      l.row(r) += p;
    }
  }
}
template <int R, int C>
XF_INLINE void operator+=(RowSum<R>& l, const RowMajor<R, C>& t) {
  XF_UNROLL for (int r = 0; r < R; ++r) {
    XF_UNROLL for (int c = 0; c < t.kChunks; ++c) l.row(r) += t.row(r, c);
  }
}
template <int R, int C>
XF_INLINE void operator*=(RowMajor<R, C>& t, const RowVec<R>& s) {
  XF_UNROLL for (int r = 0; r < R; ++r) {
    t.template columns<RowMajor<R, C>::kColumns>(r, 0) *= s[r];
  }
}

template <int R, int C>
XF_INLINE void operator-=(RowMajor<R, C>& t, const RowVec<R>& s) {
  XF_UNROLL for (int r = 0; r < R; ++r) {
    t.template columns<RowMajor<R, C>::kColumns>(r, 0) -= s[r];
  }
}

// ---- memory -------------------------------------------------------------------------------------

// Loads the first `count` values of a row; the others are hidden, as -inf.
template <int C>
XF_INLINE void load_row(RowMajor<1, C>& t, const float* x, int count) {
  each_in_row(t, 0, 0, [&](floats, ints c) {
    return floats(
        esimd::gather<float, kLanes>(x, simd<uint32_t, kLanes>(c * 4), c < count, floats(-kInf)));
  });
}

// Returns the bits of x as elements T.
template <class T>
XF_INLINE simd<UintOfSize<sizeof(T)>, kLanes> narrowed(floats x) {
  if constexpr (kQuantised<T>) {
    return narrow_to<T>(x);
  } else {
    simd<T, kLanes> narrow = esimd::convert<T>(x);
    return narrow.template bit_cast_view<UintOfSize<sizeof(T)>>();
  }
}

// Stores row r times s to the first row of m.
template <class T, template <int, int> class AnyTile, int R, int D>
XF_INLINE void store_row(const Rows<T>& m, const AnyTile<R, D>& O, int r, float s) {
  using Bits = UintOfSize<sizeof(T)>;
  const int columns = at_most(m.width, D);
  XF_UNROLL for (int c = 0; c < O.kChunks; ++c) {
    const ints column = lane_index() + c * kLanes;
    esimd::scatter<Bits, kLanes>(reinterpret_cast<Bits*>(m.row(0)),
                                 simd<uint32_t, kLanes>(column * int(sizeof(T))),
                                 narrowed<T>(floats(O.row(r, c) * s)), column < columns);
  }
}

}  // namespace xeflash::xe
