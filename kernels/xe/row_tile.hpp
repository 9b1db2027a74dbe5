// Row tiles of the Xe backend, for few rows: lane = column, a row's columns in consecutive
// registers, so that one instruction takes two of them. A value per row is a ColVec as in tiles of
// many rows, and along a row lanes stay apart as long.
#pragma once

#include "xe/tile.hpp"

namespace xeflash::xe {

constexpr int kWide = 2 * kLanes;  // of one instruction

template <int R>
using RowVec = ColVec<R>;
template <int R>
using RowSum = ColSum<R>;

template <int R, int C>
struct RowTile {
  static constexpr int kColumns = round_up(C, kWide), kChunks = round_up(C, kLanes) / kLanes;
  simd<float, R * kColumns> x;

  // N columns of row r from column c on
  template <int N>
  XF_INLINE auto columns(int r, int c) {
    return x.template select<N, 1>(r * kColumns + c);
  }
  template <int N>
  XF_INLINE simd<float, N> columns(int r, int c) const {
    return part<N>(x, r * kColumns + c);
  }
  // One value of row r in all of N lanes
  template <int N>
  XF_INLINE simd<float, N> broadcast(int r, int c) const {
    return x.template replicate_w<N, 1>(r * kColumns + c);
  }
};

template <int R, int C>
XF_INLINE void fill(RowTile<R, C>& t, float value) {
  t.x = value;
}
// Rows are registers with fixed names: nothing may be indexed at run time.
template <int R, class F>
XF_INLINE void each_row(F f) {
  XF_UNROLL for (int r = 0; r < R; ++r) f(r);
}
// f(value, column) along one row; column is a vector.
template <int R, int C, class F>
XF_INLINE void each_in_row(RowTile<R, C>& t, int r, int col0, F f) {
  XF_UNROLL for (int c = 0; c < C; c += kLanes) {
    t.template columns<kLanes>(r, c) =
        f(floats(t.template columns<kLanes>(r, c)), lane_index() + (col0 + c));
  }
}
// Hides the columns from `count` on.
template <int R, int C>
XF_INLINE void hide_columns(RowTile<R, C>& t, int count) {
  XF_UNROLL for (int r = 0; r < R; ++r) {
    each_in_row(t, r, 0,
                [&](floats s, ints c) { return select(c < count, s, floats(-__builtin_inff())); });
  }
}
template <int R, int C>
XF_INLINE ColMax<R> row_max(const RowTile<R, C>& t) {
  ColMax<R> m;
  XF_UNROLL for (int r = 0; r < R; ++r) {
    floats most = t.template columns<kLanes>(r, 0);
    XF_UNROLL for (int c = kLanes; c < C; c += kLanes) {
      most = max(most, t.template columns<kLanes>(r, c));
    }
    m.x.template select<kLanes, 1>(r * kLanes) = most;
  }
  return m;
}
// P = 2^(S * scale - m), l += row sums of P. P stays in fp32.
template <int Degree, int R, int C>
XF_INLINE void exp2_and_sum(RowTile<R, C>& P, const RowTile<R, C>& S, float scale,
                            const RowVec<R>& m, RowSum<R>& l) {
  XF_UNROLL for (int r = 0; r < R; ++r) {
    XF_UNROLL for (int c = 0; c < C; c += kLanes) {
      const floats s = S.template columns<kLanes>(r, c);
      const floats p = esimd::exp2(floats(s * scale - m[r]));
      P.template columns<kLanes>(r, c) = p;
      l.row(r) += p;
    }
  }
}
template <int R, int C>
XF_INLINE void operator*=(RowTile<R, C>& t, const RowVec<R>& s) {
  XF_UNROLL for (int r = 0; r < R; ++r) {
    t.template columns<RowTile<R, C>::kColumns>(r, 0) *= s[r];
  }
}

// ---- memory -------------------------------------------------------------------------------------

// The first `count` values of a row; the others are hidden.
template <int C>
XF_INLINE void load_row(RowTile<1, C>& t, const float* x, int count) {
  each_in_row(t, 0, 0, [&](floats, ints c) {
    return floats(esimd::gather<float, kLanes>(x, simd<uint32_t, kLanes>(c * 4), c < count,
                                               floats(-__builtin_inff())));
  });
}

// Row r times s, to memory.
template <class T, int R, int D>
XF_INLINE void store_row(T* row, const RowTile<R, D>& O, int r, float s) {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  XF_UNROLL for (int c = 0; c < D; c += kLanes) {
    const ints column = lane_index() + c;
    simd<T, kLanes> x = esimd::convert<T>(floats(O.template columns<kLanes>(r, c) * s));
    esimd::scatter<Bits, kLanes>(reinterpret_cast<Bits*>(row),
                                 simd<uint32_t, kLanes>(column * int(sizeof(T))),
                                 x.template bit_cast_view<Bits>(), column < D);
  }
}

}  // namespace xeflash::xe
