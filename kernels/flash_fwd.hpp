// FlashAttention-2, Algorithm 1 (Dao, 2023): forward, one block of Br query rows per thread, or per
// team of threads where O is too wide for one thread; softmax in base 2.
//   i, j: block of queries, of keys     Q K V S P O: tiles
//   softmax: m, the running maximum of a row, and l, its running sum
#pragma once

#include "attention/forward.hpp"

namespace xeflash {

template <class Config>
XF_INLINE void flash_fwd(const FwdParams& p, const Work& work) {
  using Tiles = FwdTiles<Config>;
  using T = typename Config::Element;
  Tiles::allocate();

  const Sequence seq(p, work.batch);
  const typename Tiles::OwnRows rows(p, seq, work);
  if (rows.is_empty()) return;
  const typename Config::Mask mask(p, seq, rows.head);
  const auto range = visible_blocks<Config>(p, mask, rows, work.split);
  const int team_column = work.part * Group::team * Tiles::dv;
  const KeysAndValues<Config> kv(p, seq, rows.head_k, range, team_column);
  const Scores<Config> scores(p, seq, rows.head, mask, range);
  const typename Config::Drop dropout(p, seq, rows.head);

  typename Tiles::QueryTile Q;
  load(Q, rows.template of<const T>(p.q));
  typename Tiles::OutputSums sums;
  fill(sums, 0.f);
  RunningSoftmax<Config> softmax(p);

  for (KeyBlocks<Tiles::Bc, typename Config::Mask::Blocks> j(range); j.more(); j.advance()) {
    kv.prefetch_block(j.next());
    const auto K = kv.keys(j.first());
    typename Tiles::ScoreTile S;
    const auto seen = scores.template seen<Tiles::Br>(rows, j.index, j.scored());
    mma_ABt(S, Q, K, seen);  // S = Q K^T
    scores.change(S, rows, j.index, j.scored());
    typename Tiles::ProbTile P;
    softmax.step(P, S, sums);  // P = exp(S - m), l += rowsum P
    dropout.drop(P, rows.row, j.scored());
    const auto& all_P = softmax.joined(P, sums);
    const auto V = kv.values(j.first());
    mma_AB(sums, all_P, V, seen);  // O += P V
  }

  auto&& O = settled(sums);
  if (!softmax.finish(O)) return;
  const int column = team_column + Group::member() * Tiles::dv;
  if (column >= Config::head_dim_v) return;
  const auto states = softmax.states(p, rows);
  const float factor = dropout.keep_scale * p.v_scale;
  O *= states([&](auto row) { return row.normaliser(factor); });  // O / l
  if (is_split<Config>(p)) return softmax.store_partial(p, rows, work.split, column, O);
  store_output<Config>(p, rows, column, O, states);
  if (p.lse && column == 0) {
    store(rows.per_row(p, p.lse), states([&](auto row) { return row.log_sum_exp(p.empty_lse); }));
  }
}

// There is one thread, or one team of threads, per block of rows of a head, per split of the keys,
// which combine.hpp merges, and per part of the columns of O where O is too wide.
template <class Config>
  requires ForwardMask<typename Config::Mask>
XF_INLINE void flash_fwd(const FwdParams& p) {
  constexpr int Br = Config::block_rows;
  const int heads = Config::packs_heads ? p.heads_k : p.heads_q;
  const int rows = p.heads_q / heads * p.max_q;
  flash_fwd<Config>(p, Work(Group::index(), Config::parts / Group::team, (rows - 1) / Br + 1, heads,
                            First::last_block, Config::splits_keys ? p.splits : 1));
}

}  // namespace xeflash
