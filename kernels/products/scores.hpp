// The vocabulary of matmul_softmax, beside that of tiles:
//
//   ScoreRows<Config>   a thread's rows of A, of the bias and of the result
//   KeptScores<Config>  tiles that keep the scores of a thread's rows for all columns
//   exp_of_rows         S = exp(S - m), l += rowsum S; or l alone
//   store_scaled        stores a tile, each row times a factor
//   add_or_set          f(tile) computes a tile, which is added to S or replaces it
//   add_scaled_bias     S = scale S + bias
//   with_inputs         calls f(rows) with one step of a matrix's columns
#pragma once

#include "products/softmax_params.hpp"
#include "tile/tile.hpp"

#if XEFLASH_BACKEND_CPU
#include "cpu/scores.hpp"
#else
#include "xe/scores.hpp"
#endif

namespace xeflash {

template <class Config>
struct ScoreRows {
  static constexpr int Br = Config::rows, Bn = Config::columns, Bk = Config::inputs;
  using T = typename Config::Element;
  using Bias = typename Config::Bias;
  using InputTile = Left<T, Br, Bk>;
  using ColumnTile = RightT<T, Bn, Bk>;
  using ScoreTile = Tile<Br, Bn>;

  const MatmulSoftmaxParams& p;
  int row, batch;

  // Finds the rows of this thread in block i of the launch.
  XF_INLINE ScoreRows(const MatmulSoftmaxParams& p, int i) : p(p) {
    constexpr int kRows = Group::tiles * Br;
    const int blocks = (p.rows + kRows - 1) / kRows;
    batch = i / blocks;
    row = (i - batch * blocks) * kRows + Group::tile() * Br;
  }
  // Returns whether this thread has no row to compute, and no other thread waits for it.
  XF_INLINE bool is_empty() const { return !Group::in_step && row >= p.rows; }

  template <class E>
  XF_INLINE E* matrix(const MatricesArg& t) const {
    E* first = static_cast<E*>(t.data);
    int rest = batch;
    XF_UNROLL for (int d = kBatchDims - 1; d >= 0; --d) {
      const int outer = rest / p.sizes[d];
      first += (rest - outer * p.sizes[d]) * t.batch[d];
      rest = outer;
    }
    return first;
  }
  XF_INLINE Rows<const T> a() const {
    return {matrix<const T>(p.a), p.a.row, p.rows, row, p.inputs};
  }
  XF_INLINE Rows<const T> b() const {
    return {matrix<const T>(p.b), p.b.row, p.columns, 0, p.inputs};
  }
  XF_INLINE Rows<T> out() const { return {matrix<T>(p.out), p.out.row, p.rows, row, p.columns}; }

  // S += A B^T for the step of inputs at k and the columns from `column` on; the first step sets S.
  XF_INLINE void add_product(ScoreTile& S, const InputTile& A, const Rows<const T>& b, int column,
                             int k) const {
    with_inputs<Bn, Bk>(b.from(column), k, [&](const Rows<const T>& rows) {
      const ColumnTile B(rows);
      if constexpr (Config::one_step) {
        mma_ABt(S, A, B);
      } else {
        add_or_set(S, k == 0, [&](ScoreTile& part) { mma_ABt(part, A, B); });
      }
      Group::meet_staged();
    });
  }
  // S = scale S + bias; -inf past the last column
  XF_INLINE void finish(ScoreTile& S, int column) const {
    using V = Floats;
    if constexpr (!std::is_void_v<Bias>) {
      const Bias* bias = matrix<const Bias>(p.bias);
      add_scaled_bias(S, p.scale, row, column, [&](auto i, auto k) {
        return value_at(bias, p.bias.row, at_most(i, p.rows - 1), p.bias.col,
                        at_most(k, p.columns - 1));
      });
    } else if (p.scale != 1.f) {
      S *= ColVec<Br>(p.scale);
    }
    if (column + Bn > p.columns) {
      each(S, row, column,
           [&](auto s, auto, auto k) { return select(k < p.columns, V(s), V(-kInf)); });
    }
  }
  // Stores S times a factor per row, in the columns from `column` on.
  XF_INLINE void store_times(const Rows<T>& out, ScoreTile& S, const ColVec<Br>& factor,
                             int column) const {
    const Rows<T> to = out.columns(column, p.columns);
    if (column + Bn <= p.columns) {
      store_scaled(to, S, factor);
    } else {
      S *= factor;
      store(RaggedRows<T>(to), S);
    }
  }
};

}  // namespace xeflash
