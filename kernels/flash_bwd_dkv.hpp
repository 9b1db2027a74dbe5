// FlashAttention-2, Algorithm 2 (Dao, 2023), by rows of keys: dK and dV of a block of Bc keys per
// thread, or per pair of teams of threads, summed up over all heads of queries that share them. All
// tiles are transposed, so that what is a left operand lies as one: S here is the paper's S^T.
//   i, j: block of queries, of keys     Q K V S P, and their gradients dO dK dV dS dP: tiles
//   Delta, and what exponents are relative to: see flash_bwd_dq.hpp, which is launched before
#pragma once

#include "attention/backward.hpp"

namespace xeflash {

// What a thread makes: all, or one of a pair makes P and dV, the other dS and dK, so that each
// keeps one operand and one sum in registers.
template <bool OfValues, bool OfKeys>
struct Share {
  static constexpr bool kValues = OfValues, kKeys = OfKeys;
};

// Where dQ is made by a kernel of its own.
struct NoQueries {
  static constexpr bool kWanted = false;
  template <class Rows>
  XF_INLINE void take_keys(const Rows&) {}
  template <class Tile>
  XF_INLINE void add(int, int, const Tile&) {}
};

template <class Config, class Share, class QueryGradient>
XF_INLINE void flash_bwd_dkv(const BwdParams& p, const Work& work, QueryGradient& dQ) {
  using Tiles = DkvTiles<Config>;
  using T = typename Config::Element;
  using Result = typename Config::Result;
  constexpr int Br = Tiles::Br, Bc = Tiles::Bc;

  const Sequence seq(p, work.batch);
  const RowSpan<Bc> keys{work.block * Bc, seq.sk};
  if (keys.is_empty()) return;
  const typename Config::Mask mask(p, seq);
  const auto range = mask.template q_blocks<Br>(keys.first(), keys.last());
  const auto own = mask.template q_blocks<Br>(keys.row, keys.own_last());
  const OwnColumns of_k{work.part, Tiles::own_k, Tiles::d},
      of_v{work.part, Tiles::own_v, Tiles::dv};

  const auto k_rows = seq.k_rows<const T>(p.k, work.head).from(keys.row);
  dQ.take_keys(k_rows);
  typename Tiles::KeyTile K;
  if constexpr (Share::kValues) load(K, k_rows);
  typename Tiles::ValueTile V;
  if constexpr (Share::kKeys) load(V, seq.k_rows<const T>(p.v, work.head).from(keys.row));
  typename Tiles::KeyGradient dK;
  fill(dK, 0.f);
  typename Tiles::ValueGradient dV;
  fill(dV, 0.f);
  typename Tiles::ProbPool prob_pool;
  typename Tiles::ScorePool score_pool;
  typename Tiles::HandedProbs handed;
  // Keys beyond the last one have no gradient of their own, but must not count for the queries.
  const bool whole = !QueryGradient::kWanted || keys.own_last() - keys.row == Bc - 1;

  const int heads = p.heads_q / p.heads_k;
  for (int head = work.head * heads; head < (work.head + 1) * heads; ++head) {
    const auto q_rows = seq.q_rows<const T>(p.q, head, 0);
    const auto dO_rows = seq.q_rows<const T>(p.dout, head, 0);
    const auto q_columns = of_k.right_of(q_rows), dO_columns = of_v.right_of(dO_rows);
    const BlocksOf<typename Tiles::QueryTileT> queries_t(q_rows);
    const BlocksOf<typename Tiles::GradientTileT> out_gradients_t(dO_rows);
    const BlocksOf<typename Tiles::QueryTile> queries(q_columns);
    const BlocksOf<typename Tiles::GradientTile> out_gradients(dO_columns);
    PassedOrigins<Tiles::Bs> origins(p, seq, head);
    AcrossRows<Tiles::Bs> delta(seq.line<const float>(p, p.delta, head));
    Ahead<Br, Tiles::d, typename Tiles::Matrix> next_q(q_rows);
    Ahead<Br, Tiles::dv, typename Tiles::Matrix> next_dO(dO_rows);
    const Gradients<Config, true> gradients(p, seq, head, mask);

    for (int i = range.begin; i < range.end; ++i) {
      const int row = i * Br, scored = row + member() * Tiles::Bs;
      next_q.fetch(row + Br);
      next_dO.fetch(row + Br);
      const auto Q_t = queries_t.at(row);
      const auto dO_t = out_gradients_t.at(row);
      typename Tiles::PartTile P_T, dS_T;
      typename Tiles::ScoreTile P, slopes, dP;
      if (Share::kValues && own.has(i)) {
        const auto origin = origins.at(scored);
        mma_ABt(P, K, Q_t);  // S = K Q^T
        gradients.probabilities(P, slopes, whole && own.is_full(i), keys.row, scored, origin);
        narrow(P_T, P);
        gradients.drop(P_T, keys.row, scored);
        prob_pool.give(P_T);
        gradients.times_slopes(P, slopes);
        handed.give(P);
      }
      if (Share::kKeys && own.has(i)) mma_ABt(dP, V, dO_t);  // dP = dO V^T
      meet_pair();
      if (Share::kKeys && own.has(i)) {
        gradients.drop(dP, keys.row, scored);
        weigh(dP, handed.take(P), delta.at(scored, 0.f));  // dS = P (dP - Delta)
        narrow(dS_T, dP);
        dQ.add(head, i, dP);
        score_pool.give(dS_T);
      }
      meet_team();
      const auto dO = out_gradients.at(row);
      if (Share::kValues && own.has(i)) mma_AB(dV, prob_pool.all(P_T), dO);  // dV += P dO
      const auto Q = queries.at(row);
      if (Share::kKeys && own.has(i)) mma_AB(dK, score_pool.all(dS_T), Q);  // dK += dS Q
    }
  }

  const float keep_scale = typename Config::Drop(p, seq, 0).keep_scale;
  if (Share::kValues && p.dv.data) {
    dV *= ColVec<Bc>(keep_scale);
    of_v.template store_in<Config>(seq.k_rows<Result>(p.dv, work.head).from(keys.row), dV);
  }
  if (Share::kKeys && p.dk.data) {
    dK *= ColVec<Bc>(p.scale * keep_scale);
    of_k.template store_in<Config>(seq.k_rows<Result>(p.dk, work.head).from(keys.row), dK);
  }
}

template <class Config>
XF_INLINE void flash_bwd_dkv(const BwdParams& p) {
  constexpr int Bc = Config::block_q;
  DkvTiles<Config>::allocate();
  const Work work(group_index(), Config::parts / kTeam, (p.max_k - 1) / Bc + 1, p.heads_k,
                  First::first_block);
  NoQueries dQ;
  if constexpr (!kPairs) {
    flash_bwd_dkv<Config, Share<true, true>>(p, work, dQ);
  } else if (of_pair() == 0) {
    flash_bwd_dkv<Config, Share<true, false>>(p, work, dQ);
  } else {
    flash_bwd_dkv<Config, Share<false, true>>(p, work, dQ);
  }
}

}  // namespace xeflash
