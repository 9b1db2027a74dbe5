// The vocabulary of kernels of a language model's head, beside that of tiles and of scores.hpp.
// LogitRows<Config> has a thread's rows and its part of the columns, and computes their logits.
//
//   KeptInputs           x of a thread's rows as left operands, for all columns
//   with_step            calls f(rows) with one step of a matrix's columns
//   RowInts, targets_of  an integer per row; the target of each row, -1 where there is none
//   counts_of            1 per row, 0 if the row is ignored, NaN if its target is not a token
//   load_line            reads one contiguous value per row; another value past the last row
//   add_to_columns       adds a bias to each column
//   kLanes               the rows or columns of a thread in kernels without tiles
//   pick                 takes the element of each row at its target, if the tile has it
//   sum_of_differences   rowsum(S - m) over columns that exist
//   slopes_of            the gradient of a loss over x W^T, in the place of the logits
//   store_turned         stores a tile transposed
//   lanes_at, store_lanes  read kLanes elements; store the first `count`
//   sum_of               the sum of all rows
//   Slope<T>             element type of gradients: T, or fp32 where T is not multiplied directly
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

  // Finds the rows and the part of this thread in block i of the launch; the blocks of a part are
  // contiguous.
  XF_INLINE LogitRows(const LogitParams& p, int i) : p(p) {
    constexpr int kRows = Group::tiles * Br;
    const int blocks = (p.rows + kRows - 1) / kRows;
    part = i / blocks;
    row = (i - part * blocks) * kRows + Group::tile() * Br;
  }
  // Returns whether this thread has no row to compute, and no other thread waits for it.
  XF_INLINE bool is_empty() const { return !Group::in_step && row >= p.rows; }
  XF_INLINE int begin() const { return part * p.part; }
  XF_INLINE int end() const { return begin() + p.part < p.columns ? begin() + p.part : p.columns; }

  XF_INLINE Rows<const T> x() const {
    return {static_cast<const T*>(p.x), p.x_row, p.rows, row, p.inputs};
  }
  XF_INLINE Rows<const T> weight() const {
    return {static_cast<const T*>(p.weight), p.weight_row, p.columns, 0, p.inputs};
  }

  // S = the logits of the columns from `column` on; -inf past the last column
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

// Stores a tile of logits; memory must have room for whole tiles.
template <class Config>
XF_INLINE void store_logits(const CrossEntropyParams& p,
                            const Tile<Config::rows, Config::columns>& S, int row, int column) {
  if (row < p.rows) store(Rows<float>{p.logits + column, p.logits_row, p.rows, row}, S);
}

// Calls f(rows, worker) for each block that this work-group takes.
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

// Returns exp(from - to) of each row.
template <int R>
XF_INLINE ColVec<R> decay(const ColVec<R>& from, const ColVec<R>& to) {
  return map([](auto a, auto b) { return exp2(decltype(a)((a - b) * kLog2e)); }, from, to);
}

}  // namespace xeflash
