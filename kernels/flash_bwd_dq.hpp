// FlashAttention-2, Algorithm 2 (Dao, 2023), by rows of queries: dQ of a block of Br rows per
// thread, or per team of threads. Delta, which the keys' gradients need too, comes first.
//   i, j: block of queries, of keys     Q K V O S P, and their gradients dQ dO dS dP: tiles
#pragma once

#include "attention/backward.hpp"

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
  if (work.part == 0 && member() == 0) {
    store(seq.per_row(p, p.delta, work.head).from(rows.row), delta);
  }
  const typename Config::Mask mask(p, seq);
  const OwnOrigin<ColVec<Br>> origin = origin_of<Config>(p, seq, work.head, mask, rows, p.longer);
  if (work.part == 0 && member() == 0) origin.store_in(p, seq, work.head, rows.row);
  if (!p.dq.data) return;

  const auto range = mask.template k_blocks<Bc>(rows.first(), rows.last());
  const auto own = mask.template k_blocks<Bc>(rows.row, rows.own_last());
  const int head_k = work.head / (p.heads_q / p.heads_k);
  const auto k_rows = seq.k_rows<const T>(p.k, head_k), v_rows = seq.k_rows<const T>(p.v, head_k);
  const OwnColumns columns{work.part, Tiles::own, Tiles::d};
  const auto k_columns = columns.right_of(k_rows);
  const BlocksOf<typename Tiles::KeyTileT> keys_t(k_rows);
  const BlocksOf<typename Tiles::ValueTileT> values_t(v_rows);
  const BlocksOf<typename Tiles::KeyTile> keys(k_columns);
  Ahead<Bc, Tiles::d, typename Tiles::Matrix> next_k(k_rows);
  Ahead<Bc, Tiles::dv, typename Tiles::Matrix> next_v(v_rows);
  const Gradients<Config, false> gradients(p, seq, work.head, mask);

  typename Tiles::QueryTile Q;
  load(Q, seq.q_rows<const T>(p.q, work.head, 0).from(rows.row));
  typename Tiles::OutputGradient dO;
  load(dO, seq.q_rows<const T>(p.dout, work.head, 0).from(rows.row));
  typename Tiles::QueryGradient dQ;
  fill(dQ, 0.f);
  typename Tiles::Pool pool;

  for (int j = range.begin; j < range.end; ++j) {
    const int key = j * Bc, scored = key + member() * Tiles::Bs;
    next_k.fetch(key + Bc);
    next_v.fetch(key + Bc);
    const auto K_t = keys_t.at(key);
    const auto V_t = values_t.at(key);
    typename Tiles::PartTile dS;
    if (own.has(j)) {
      typename Tiles::ScoreTile P, slopes, dP;
      mma_ABt(P, Q, K_t);  // S = Q K^T
      gradients.probabilities(P, slopes, own.is_full(j), rows.row, scored, origin);
      mma_ABt(dP, dO, V_t);  // dP = dO V^T
      gradients.drop(dP, rows.row, scored);
      weigh(dP, P, delta);  // dS = P (dP - Delta)
      gradients.through_changes(dP, slopes);
      narrow(dS, dP);
      pool.give(dS);
    }
    meet_team();
    const auto K = keys.at(key);
    if (own.has(j)) mma_AB(dQ, pool.all(dS), K);  // dQ += dS K
  }

  dQ *= ColVec<Br>(p.scale * gradients.dropout.keep_scale);
  columns.template store_in<Config>(
      seq.q_rows<typename Config::Result>(p.dq, work.head, 0).from(rows.row), dQ);
}

template <class Config>
XF_INLINE void flash_bwd_dq(const BwdParams& p) {
  constexpr int Br = Config::block_q;
  flash_bwd_dq<Config>(
      p, Work(group_index(), Config::parts / kTeam, (p.max_q - 1) / Br + 1, p.heads_q));
}

}  // namespace xeflash
