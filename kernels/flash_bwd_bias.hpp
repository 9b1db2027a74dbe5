// Gradients of a term that is added to scores: a bias, which may be broadcast, or ALiBi's slope
// times a distance. Each thread has one tile of the term, and loops over all scores that share the
// tile in the order of batches, heads, rows and keys; it recomputes their products. A kernel that
// stores Delta, such as flash_bwd_dq, is launched before.
//   dbias = sum dS     row_slopes = -sum |distance| dS of a row, which flash_bwd_heads adds up
// Word: column_sums  returns the sum of each column of a tile
#pragma once

#include "attention/origin.hpp"

namespace xeflash {

template <class Config>
struct BiasSums {
  static constexpr int Br = Config::block_rows, Bc = Config::block_columns;
  using T = typename Config::BiasGradient;
  Tile<Br, Bc> sums;

  XF_INLINE BiasSums() { fill(sums, 0.f); }
  static XF_INLINE Extents extents(const BwdParams& p) { return p.bias; }
  template <class Tile>
  XF_INLINE void add(const BwdParams&, const Sequence&, int, const Tile& dS, int, int) {
    sums += dS;
  }
  XF_INLINE void finish(const BwdParams& p, const Work& work, float factor) {
    sums *= ColVec<Br>(factor);
    T* first = static_cast<T*>(const_cast<void*>(p.dbias.data)) + work.batch * p.dbias.batch +
               work.head * p.dbias.head;
    const Rows<T> rows = Rows<T>{first, p.dbias.row, p.bias.rows}.from(work.block * Br);
    const int key = work.part * Bc;
    if constexpr (std::is_same_v<T, float>) {
      if (p.bias.keys == 1) {
        ColSum<Br> row_sums{0.f};
        add_row_sums(row_sums, sums);
        return store(rows, ColVec<Br>(row_sums));
      }
      if (p.bias.rows == 1) {
        return store(Rows<T>{first, 1, p.bias.keys}.from(key), column_sums(sums));
      }
    }
    store(RaggedRows<T>(rows.columns(key, p.bias.keys)), sums);
  }
};

template <class Config>
struct SlopeSums {
  static constexpr int Br = Config::block_rows;
  ColSum<Br> sums{0.f};

  static XF_INLINE Extents extents(const BwdParams& p) { return {p.batch, p.heads_q, p.max_q, 1}; }
  template <class Tile>
  XF_INLINE void add(const BwdParams& p, const Sequence& seq, int head, Tile& dS, int row,
                     int key) {
    const Alibi alibi(p, seq, head);
    each(dS, row, key,
         [&](auto ds, auto q, auto k) { return -ds * alibi.distance<decltype(ds)>(q, k); });
    add_row_sums(sums, dS);
  }
  XF_INLINE void finish(const BwdParams& p, const Work& work, float factor) {
    ColVec<Br> row_sums = sums;
    row_sums *= ColVec<Br>(factor);
    const Sequence seq(p, work.batch);
    store(seq.per_row(p, p.row_slopes, work.head).from(work.block * Br), row_sums);
  }
};

template <class Config>
  requires BackwardMask<typename Config::Mask>
XF_INLINE void flash_bwd_bias(const BwdParams& p) {
  using Tiles = ScoreTiles<Config, true>;
  using T = typename Config::Element;
  using Sums = std::conditional_t<Config::sums_slopes, SlopeSums<Config>, BiasSums<Config>>;
  constexpr int Br = Tiles::Br, Bc = Tiles::Bc;
  static_assert(Group::team == 1);
  Tiles::allocate();

  const Extents extents = Sums::extents(p);
  const int row_blocks = (extents.rows - 1) / Br + 1, key_blocks = (extents.keys - 1) / Bc + 1;
  const Work work(Group::index(), key_blocks, row_blocks, extents.heads);
  const int step = (row_blocks + Group::tiles - 1) / Group::tiles * Group::tiles * Br;
  Sums sums;
  for (int b = work.batch; b < p.batch; b += extents.batches) {
    const Sequence seq(p, b);
    for (int head = work.head; head < p.heads_q; head += extents.heads) {
      const typename Config::Mask mask(p, seq, head);
      const int head_k = head / (p.heads_q / p.heads_k);
      BlocksOfKeys<Tiles> others(seq.rows_per_key<const T>(p.k, head_k),
                                 seq.rows_per_key<const T>(p.v, head_k));
      for (RowSpan<Br> rows{work.block * Br, seq.sq}; !rows.is_empty(); rows.row += step) {
        auto seen = mask.template k_blocks<Bc>(rows.first(), rows.last());
        const auto own = mask.template k_blocks<Bc>(rows.row, rows.own_last());
        if (extents.keys > 1) seen = seen.only(work.part);
        if (seen.is_empty()) continue;
        Exchange<Tiles> exchange;
        ScoreGradients<Config, Tiles, OwnOrigin<ColVec<Br>>, OwnDelta<Br>> scores(
            p, seq, head, mask, load_origin<Br>(p, seq, head, rows.row),
            load_delta<Br>(p, seq, head, rows.row), exchange, rows.row);
        typename Tiles::QueryTile Q;
        load(Q, seq.rows_per_query<const T>(p.q, head, 0).from(rows.row));
        typename Tiles::OutputGradient dO;
        load(dO, seq.rows_per_query<const T>(p.dout, head, 0).from(rows.row));

        for (OwnBlocks j(others, seen, own); j.bring(); j.advance()) {
          const auto K = others.keys(j.first());
          const auto V = others.values(j.first());
          typename Tiles::ScoreTile S, dP;
          mma_ABt(S, Q, K);                            // S = Q K^T
          const auto P = scores.probabilities(S, j);   // P = exp(S - m) / l
          mma_ABt(dP, dO, V);                          // dP = dO V^T
          const auto dS = scores.gradients(P, dP, j);  // dS = P (dP - Delta)
          sums.add(p, seq, head, dS.tile, rows.row, j.first());
        }
      }
    }
  }
  sums.finish(p, work, typename Config::Drop(p, Sequence(p, work.batch), 0).keep_scale);
}

}  // namespace xeflash
