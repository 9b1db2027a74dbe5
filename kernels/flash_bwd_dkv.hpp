// FlashAttention-2, Algorithm 2 (Dao, 2023), by blocks of keys: each thread, or each team or pair
// of teams of threads, computes dK and dV of Bc keys, summed over all query heads that share them.
// All tiles are transposed, so that P and dS come out of a product in the layout of a left operand:
// S here is the paper's S^T.
//   i, j: block of queries, of keys     Q K V S P, and their gradients dO dK dV dS dP: tiles
//   Delta and the origins of exponents (origin.hpp) were stored by flash_bwd_dq or flash_bwd
#pragma once

#include "attention/origin.hpp"

namespace xeflash {

// The QueryGradient of a launch that does not compute dQ: flash_bwd_dq computes it.
struct NoQueries {
  template <class Rows>
  XF_INLINE void take_keys(const Rows&) {}
  template <class Blocks, int Bc>
  XF_INLINE void hide_missing(Blocks&, const RowSpan<Bc>&) {}
  template <class ScoreGradient>
  XF_INLINE void add(int, int, const ScoreGradient&) {}
};

template <class Config, Makes kMakes, class QueryGradient>
XF_INLINE void flash_bwd_dkv(const BwdParams& p, const Work& work, QueryGradient& dQ) {
  using Tiles = DkvTiles<Config, kMakes>;
  using T = typename Config::Element;
  using Result = typename Config::Result;
  constexpr int Br = Tiles::Br, Bc = Tiles::Bc;

  const Sequence seq(p, work.batch);
  const RowSpan<Bc> keys{work.block * Bc, seq.sk};
  if (keys.is_empty()) return;
  const OwnColumns of_k{work.part, Tiles::own_k, Tiles::d},
      of_v{work.part, Tiles::own_v, Tiles::dv};

  const auto k_rows = seq.rows_per_key<const T>(p.k, work.head).from(keys.row);
  dQ.take_keys(k_rows);
  typename Tiles::KeyTile K;
  load(K, k_rows);
  typename Tiles::ValueTile V;
  load(V, seq.rows_per_key<const T>(p.v, work.head).from(keys.row));
  typename Tiles::KeyGradient dK;
  fill(dK, 0.f);
  typename Tiles::ValueGradient dV;
  fill(dV, 0.f);
  Exchange<Tiles> exchange;

  const int heads = p.heads_q / p.heads_k;
  for (int head = work.head * heads; head < (work.head + 1) * heads; ++head) {
    const typename Config::Mask mask(p, seq, head);
    const auto seen = mask.template q_blocks<Br>(keys.first(), keys.last());
    auto own = mask.template q_blocks<Br>(keys.row, keys.own_last());
    dQ.hide_missing(own, keys);
    using Origins = PassedOrigins<Tiles::Bs>;
    using Deltas = AcrossRows<Tiles::Bs>;
    ScoreGradients<Config, Tiles, Origins, Deltas> scores(
        p, seq, head, mask, Origins(p, seq, head), Deltas(seq.line<const float>(p, p.delta, head)),
        exchange, keys.row);
    QueriesAndGradients<Tiles> others(seq.rows_per_query<const T>(p.q, head, 0),
                                      seq.rows_per_query<const T>(p.dout, head, 0), of_k, of_v);

    for (OwnBlocks i(others, seen, own); i.bring(); i.advance()) {
      const auto Q = others.queries(i.first());
      const auto dO = others.gradients(i.first());
      typename Tiles::ScoreTile S;
      mma_ABt(S, K, Q);                           // S = K Q^T
      const auto P = scores.probabilities(S, i);  // P = exp(S - m) / l
      typename Tiles::ProbGradient dP;
      mma_ABt(dP, V, dO);                          // dP = V dO^T
      const auto dS = scores.gradients(P, dP, i);  // dS = P (dP - Delta)
      dQ.add(head, i.index, dS);                   // dQ += dS^T K
      mma_AB(dV, P.all(), dO);                     // dV += P dO
      mma_AB(dK, dS.all(), Q);                     // dK += dS Q
    }
  }

  const float keep_scale = typename Config::Drop(p, seq, 0).keep_scale;
  if (p.dv.data) {
    of_v.store_in<Config>(seq.rows_per_key<Result>(p.dv, work.head).from(keys.row), dV, keep_scale);
  }
  if (p.dk.data) {
    of_k.store_in<Config>(seq.rows_per_key<Result>(p.dk, work.head).from(keys.row), dK,
                          p.scale * keep_scale);
  }
}

template <class Config>
  requires BackwardMask<typename Config::Mask>
XF_INLINE void flash_bwd_dkv(const BwdParams& p) {
  constexpr int Bc = Config::block_rows;
  DkvTiles<Config>::allocate();
  const Work work(Group::index(), Config::parts / Group::team, (p.max_k - 1) / Bc + 1, p.heads_k,
                  First::first_block);
  NoQueries dQ;
  if constexpr (Group::roles == 1) {
    flash_bwd_dkv<Config, Makes::all>(p, work, dQ);
  } else if (Group::role() == 0) {
    flash_bwd_dkv<Config, Makes::values>(p, work, dQ);
  } else {
    flash_bwd_dkv<Config, Makes::keys>(p, work, dQ);
  }
}

}  // namespace xeflash
