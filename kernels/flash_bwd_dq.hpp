// FlashAttention-2, Algorithm 2 (Dao, 2023), by blocks of queries: each thread, or each team of
// threads, computes dQ of Br rows. It first stores Delta, which the gradients of keys and values
// need too.
//   i, j: block of queries, of keys     Q K V O S P, and their gradients dQ dO dS dP: tiles
#pragma once

#include "attention/origin.hpp"

namespace xeflash {

template <class Config>
XF_INLINE void flash_bwd_dq(const BwdParams& p, const Work& work) {
  using Tiles = DqTiles<Config>;
  using T = typename Config::Element;
  constexpr int Br = Tiles::Br, Bc = Tiles::Bc;
  Tiles::allocate();

  const Sequence seq(p, work.batch);
  const RowSpan<Br> rows{work.block * Br, seq.sq};
  if (rows.is_empty()) return;
  const ColVec<Br> delta = delta_of<Br, Config>(p, seq, work.head, rows.row);  // Delta
  if (work.part == 0 && Group::member() == 0) {
    store(seq.per_row(p, p.delta, work.head).from(rows.row), delta);
  }
  const typename Config::Mask mask(p, seq, work.head);
  const OwnOrigin<ColVec<Br>> origin = origin_of<Config>(p, seq, work.head, mask, rows, p.longer);
  if (work.part == 0 && Group::member() == 0) origin.store_in(p, seq, work.head, rows.row);
  if (!p.dq.data) return;

  const auto seen = mask.template k_blocks<Bc>(rows.first(), rows.last());
  const auto own = mask.template k_blocks<Bc>(rows.row, rows.own_last());
  const int head_k = work.head / (p.heads_q / p.heads_k);
  const OwnColumns columns{work.part, Tiles::own, Tiles::d};
  BlocksOfKeys<Tiles> others(seq.rows_per_key<const T>(p.k, head_k),
                             seq.rows_per_key<const T>(p.v, head_k), columns);
  Exchange<Tiles> exchange;
  ScoreGradients<Config, Tiles, OwnOrigin<ColVec<Br>>, OwnDelta<Br>> scores(
      p, seq, work.head, mask, origin, {delta}, exchange, rows.row);

  typename Tiles::QueryTile Q;
  load(Q, seq.rows_per_query<const T>(p.q, work.head, 0).from(rows.row));
  typename Tiles::OutputGradient dO;
  load(dO, seq.rows_per_query<const T>(p.dout, work.head, 0).from(rows.row));
  typename Tiles::QueryGradient dQ;
  fill(dQ, 0.f);

  for (OwnBlocks j(others, seen, own); j.bring(); j.advance()) {
    const auto K = others.keys(j.first());
    const auto V = others.values(j.first());
    typename Tiles::ScoreTile S, dP;
    mma_ABt(S, Q, K);                            // S = Q K^T
    const auto P = scores.probabilities(S, j);   // P = exp(S - m) / l
    mma_ABt(dP, dO, V);                          // dP = dO V^T
    const auto dS = scores.gradients(P, dP, j);  // dS = P (dP - Delta)
    mma_AB(dQ, dS.all(), K);                     // dQ += dS K
  }

  columns.store_in<Config>(
      seq.rows_per_query<typename Config::Result>(p.dq, work.head, 0).from(rows.row), dQ,
      p.scale * scores.changes.dropout.keep_scale);
}

template <class Config>
  requires BackwardMask<typename Config::Mask>
XF_INLINE void flash_bwd_dq(const BwdParams& p) {
  constexpr int Br = Config::block_rows;
  flash_bwd_dq<Config>(
      p, Work(Group::index(), Config::parts / Group::team, (p.max_q - 1) / Br + 1, p.heads_q));
}

}  // namespace xeflash
