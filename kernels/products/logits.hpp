// What the head of a language model is written in, beside the vocabulary of tiles and scores.hpp.
// LogitRows<Config> has the rows and the columns of a thread: tiles of their logits.
//
//   KeptInputs           x of a thread's rows, for all columns
//   with_step            f(rows) of a matrix for a step along its rows
//   RowInts, targets_of  an integer per row; the targets of rows, -1 where there is none
//   counts_of            of each row: 1, or 0 if it is ignored, or NaN for a token that is none
//   load_line            numbers of rows that lie side by side, another where there is none
//   add_to_columns       a bias of each column
//   kLanes               rows that a thread has where it has single ones
//   pick                 the element of each row at its target
//   sum_of_differences   rowsum(S - m) of columns that are there
//   slopes_of            a loss' gradient of logits, in their place
//   store_turned         a tile to the rows of a transposed matrix
//   lanes_at, store_lanes  kLanes elements; to the first so many
//   sum_of               of all rows
//   Slope<T>             elements of slopes: fp32, where T is not multiplied as it is
#pragma once

#include "products/logit_params.hpp"
#include "products/scores.hpp"

#if XEFLASH_BACKEND_CPU
#include "cpu/logits.hpp"
#else
#include "xe/logits.hpp"
#endif

namespace xeflash {

template <class Config>
struct LogitRows {
  static constexpr int Br = Config::rows, Bn = Config::columns, Bk = Config::inputs;
  using T = typename Config::Element;
  using InputTile = Left<T, Br, Bk>;
  using ColumnTile = RightT<T, Bn, Bk>;
  using ScoreTile = Tile<Br, Bn>;

  const LogitParams& p;
  int row, part;

  // Those of a thread in block i of the launch: the blocks of a part follow each other.
  XF_INLINE LogitRows(const LogitParams& p, int i) : p(p) {
    constexpr int kRows = Group::tiles * Br;
    const int blocks = (p.rows + kRows - 1) / kRows;
    part = i / blocks;
    row = (i - part * blocks) * kRows + Group::tile() * Br;
  }
  // Whether none is there, and no other thread waits for this one.
  XF_INLINE bool is_empty() const { return !Group::in_step && row >= p.rows; }
  XF_INLINE int begin() const { return part * p.part; }
  XF_INLINE int end() const { return begin() + p.part < p.columns ? begin() + p.part : p.columns; }

  XF_INLINE Rows<const T> x() const {
    return {static_cast<const T*>(p.x), p.x_row, p.rows, row, p.inputs};
  }
  XF_INLINE Rows<const T> weight() const {
    return {static_cast<const T*>(p.weight), p.weight_row, p.columns, 0, p.inputs};
  }

  // S = logits of the columns from one on; -inf in columns that are not there
  template <class Kept>
  XF_INLINE void logits(ScoreTile& S, const Kept& x, int column) const {
    for (int k = 0; k < p.inputs; k += Bk) {
      x.at(k, [&](const InputTile& X) {
        with_step<Bn, Bk>(weight().from(column), k, [&](const Rows<const T>& rows) {
          const ColumnTile W(rows);
          add_or_set(S, k == 0, [&](ScoreTile& sums) { mma_ABt(sums, X, W); });  // S += X W^T
          Group::meet_staged();
        });
      });
    }
    if (p.bias) add_to_columns(S, static_cast<const T*>(p.bias), column, p.columns);
    if (p.scale != 1.f) S *= ColVec<Br>(p.scale);
    if (p.softcap > 0.f) {
      each(S, 0, 0,
           [&](auto s, auto, auto) { return Floats(tanh(Floats(s * p.inverse_cap)) * p.softcap); });
    }
    if (column + Bn > p.columns) {
      each(S, 0, column,
           [&](auto s, auto, auto k) { return select(k < p.columns, Floats(s), Floats(-kInf)); });
    }
  }
};

// Logits to memory that has a place for all columns of a tile.
template <class Config>
XF_INLINE void store_logits(const CrossEntropyParams& p,
                            const Tile<Config::rows, Config::columns>& S, int row, int column) {
  if (row < p.rows) store(Rows<float>{p.logits + column, p.logits_row, p.rows, row}, S);
}

// f(rows, worker) for the blocks of a work-group.
template <class Config, class F>
XF_INLINE void each_block(const LogitParams& p, F f) {
  using Logits = LogitRows<Config>;
  allocate_shared<typename Logits::ScoreTile, shared_bytes<typename Logits::ColumnTile>()>();
  const int worker = static_cast<int>(Group::index());
  for (int i = worker; i < p.groups; i += p.workers) {
    const Logits rows(p, i);
    if (!rows.is_empty()) f(rows, worker);
  }
}

// exp(from - to)
template <int R>
XF_INLINE ColVec<R> decay(const ColVec<R>& from, const ColVec<R>& to) {
  return map([](auto a, auto b) { return exp2(decltype(a)((a - b) * kLog2e)); }, from, to);
}

}  // namespace xeflash
