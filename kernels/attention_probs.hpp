// Stores the probabilities P of a forward pass as a matrix, recomputed from its LSE, for checks of
// dropout: a probability that dropout drops is stored as -P. Each thread has one tile of a head.
#pragma once

#include "attention/origin.hpp"

namespace xeflash {

template <class Config>
  requires BackwardMask<typename Config::Mask>
XF_INLINE void attention_probs(const ProbsParams& p) {
  using Tiles = ScoreTiles<Config>;
  using T = typename Config::Element;
  constexpr int Br = Tiles::Br, Bc = Tiles::Bc;
  static_assert(Group::team == 1);
  Tiles::allocate();

  const Work work(Group::index(), (p.max_k - 1) / Bc + 1, (p.max_q - 1) / Br + 1, p.heads_q);
  const Sequence seq(p, work.batch);
  const RowSpan<Br> rows{work.block * Br, seq.sq};
  const typename Config::Mask mask(p, seq, work.head);
  const int key = work.part * Bc;
  typename Tiles::ScoreTile P;
  fill(P, 0.f);
  if (!rows.is_empty() && mask.template k_blocks<Bc>(rows.first(), rows.last()).has(work.part)) {
    const auto own = mask.template k_blocks<Bc>(rows.row, rows.own_last());
    const ScoreChanges<Config, false> changes(p, seq, work.head, mask);
    const auto origin = origin_of<Config>(p, seq, work.head, mask, rows);
    const BlocksOf<typename Tiles::KeyTileT> keys_t(
        seq.rows_per_key<const T>(p.k, work.head / (p.heads_q / p.heads_k)));
    typename Tiles::QueryTile Q;
    load(Q, seq.rows_per_query<const T>(p.q, work.head, 0).from(rows.row));
    keys_t.bring(key);
    Group::meet_staged();
    if (own.has(work.part)) {
      typename Tiles::ScoreTile slopes, sign;
      mma_ABt(P, Q, keys_t.brought(key));  // S = Q K^T
      changes.probabilities(P, slopes, own.is_full(work.part), rows.row, key, origin);
      fill(sign, 2.f);
      changes.drop(sign, rows.row, key);
      each(sign, rows.row, key, [](auto s, auto, auto) { return s - 1.f; });
      P *= sign;
    }
  }
  T* first = static_cast<T*>(p.probabilities.data) + work.batch * p.probabilities.batch +
             work.head * p.probabilities.head;
  const Rows<T> all{first, p.probabilities.row, p.max_q};
  store(RaggedRows<T>(all.from(work.block * Br).columns(key, p.max_k)), P);
}

}  // namespace xeflash
