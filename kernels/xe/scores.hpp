// Scores on Xe: the scores that are kept are one tile, in registers.
#pragma once

#include "products/softmax_params.hpp"
#include "xe/mma.hpp"
#include "xe/results.hpp"

namespace xeflash::xe {

// The length of rows is a multiple of Bk, so no step needs padding.
template <int N, int Bk, class T, class F>
XF_INLINE void with_inputs(const Rows<const T>& m, int k, F f) {
  f(m.columns(k, m.width));
}

// Calls product(tile), which sets a tile; S becomes that tile if `set`, else S += it. Here S is set
// to 0 if `set`, so that both cases add.
template <int R, int C, class F>
XF_INLINE void add_or_set(Tile<R, C>& S, bool set, F product) {
  if (set) fill(S, 0.f);
  Tile<R, C> part;
  product(part);
  S += part;
}

// S = scale S + bias(row, column)
template <int R, int C, class F>
XF_INLINE void add_scaled_bias(Tile<R, C>& S, float scale, int row, int column, F bias) {
  each(S, row, column, [&](floats s, int i, ints k) { return floats(s * scale + bias(i, k)); });
}

// l += rowsum exp(S - m). With Keep, exp(S - m) replaces S.
template <int Degree, bool Keep, int R, int C>
XF_INLINE void exp_of_rows(Tile<R, C>& S, const ColVec<R>& m, ColSum<R>& l) {
  XF_UNROLL for (int c = 0; c < S.kChunks; ++c) {
    XF_UNROLL for (int r = 0; r < R; ++r) {
      const floats p = esimd::exp2(floats((S.row(r, c) - m[r]) * kLog2e));
      l.row(r) += p;
      if constexpr (Keep) S.row(r, c) = p;
    }
  }
}

template <class T, int R, int C>
XF_INLINE void store_scaled(const Rows<T>& m, Tile<R, C>& S, const ColVec<R>& factor) {
  S *= factor;
  store(m, S);
}

template <class Config>
struct KeptScores {
  Tile<Config::rows, Config::columns> tile;

  XF_INLINE KeptScores(const MatmulSoftmaxParams&, int64_t) {}
  XF_INLINE auto& at(int) { return tile; }
};

}  // namespace xeflash::xe
