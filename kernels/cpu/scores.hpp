// Scores on the CPU: all scores of a block of rows are kept, in memory that stays in L2 or L3.
#pragma once

#include "cpu/mma.hpp"
#include "cpu/products.hpp"
#include "products/softmax_params.hpp"

namespace xeflash::cpu {

// Calls f with Bk columns of N rows, from column k on; if rows end before, with a copy padded with
// zeros.
template <int N, int Bk, class T, class F>
XF_INLINE void with_inputs(const Rows<const T>& m, int k, F f) {
  if (k + Bk <= m.width) return f(m.columns(k, m.width));
  const PaddedRows<N, Bk, T> padded(m, k);
  f(Rows<const T>{padded.x[0], Bk, m.size() < N ? m.size() : N});
}

// Calls product(tile), which sets a tile; S becomes that tile if `set`, else S += it.
template <int R, int C, class F>
XF_INLINE void add_or_set(Tile<R, C>& S, bool set, F product) {
  if (set) return product(S);
  Tile<R, C> part;
  product(part);
  S += part;
}

// S = scale S + bias(row, column)
template <int R, int C, class F>
XF_INLINE void add_scaled_bias(Tile<R, C>& S, float scale, int row, int column, F bias) {
  each(S, row, column, [&](f32x16 s, i32x16 i, int k) { return fma(s, scale, bias(i, k)); });
}

// l += rowsum exp(S - m). With Keep, exp(S - m) replaces S.
template <int Degree, bool Keep, int R, int C>
XF_INLINE void exp_of_rows(Tile<R, C>& S, const ColVec<R>& m, ColVec<R>& l) {
  constexpr int Rt = kTogether<R>;
  for (int r0 = 0; r0 < R / kLanes; r0 += Rt) {
    f32x16 even[Rt] = {}, odd[Rt] = {};  // two chains hide the latency of additions
    for (int c = 0; c < S.cols; c += 2) {
      XF_UNROLL for (int r = 0; r < Rt; ++r) {
        f32x16 &s0 = S.at(c, r0 + r), &s1 = S.at(c + 1, r0 + r);
        const f32x16 p0 = exp2<Degree>((s0 - m.x[r0 + r]) * kLog2e);
        const f32x16 p1 = exp2<Degree>((s1 - m.x[r0 + r]) * kLog2e);
        even[r] += p0;
        odd[r] += p1;
        if constexpr (Keep) s0 = p0, s1 = p1;
      }
    }
    XF_UNROLL for (int r = 0; r < Rt; ++r) l.x[r0 + r] += even[r] + odd[r];
  }
}

// Stores S times a factor per row, 16 rows by 16 columns, or by 16 pairs of columns, at a time.
template <class T, int R, int C>
XF_INLINE void store_scaled(const Rows<T>& m, const Tile<R, C>& S, const ColVec<R>& factor) {
  constexpr int kColumns = kPaired<T> ? 2 * kLanes : kLanes;
  static_assert(C % kColumns == 0);
  for (int r = 0; r < R / kLanes; ++r) {
    const int rows = m.size() - r * kLanes;
    for (int c = 0; c < C; c += kColumns) {
      std::conditional_t<kPaired<T>, u32x16, f32x16> v[kLanes];
      XF_UNROLL for (int i = 0; i < kLanes; ++i) {
        if constexpr (kPaired<T>)
          v[i] = pack_pairs(S.at(c + 2 * i, r) * factor.x[r], S.at(c + 2 * i + 1, r) * factor.x[r]);
        else
          v[i] = S.at(c + i, r) * factor.x[r];
      }
      transpose(v);
      XF_UNROLL for (int i = 0; i < kLanes; ++i) {
        if (i >= rows) continue;
        if constexpr (kPaired<T>)
          store_as(m.row(r * kLanes + i) + c, v[i]);
        else
          store_narrowed(m.row(r * kLanes + i) + c, v[i]);
      }
    }
  }
}

template <class Config>
struct KeptScores {
  using ScoreTile = Tile<Config::rows, Config::columns>;
  static_assert(sizeof(ScoreTile) == (Config::rows * Config::columns + 16) * sizeof(float));
  ScoreTile* tiles;

  XF_INLINE KeptScores(const MatmulSoftmaxParams& p, int64_t worker)
      : tiles(reinterpret_cast<ScoreTile*>(p.tiles) +
              worker * ((p.columns + Config::columns - 1) / Config::columns)) {}
  XF_INLINE ScoreTile& at(int column) { return tiles[column / Config::columns]; }
};

}  // namespace xeflash::cpu
