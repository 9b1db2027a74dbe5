// Attention of one query token (Flash-Decoding, Dao et al., 2023): memory-bound.
// The rows of a tile are up to Br of the Hq / Hkv query heads that share a KV head, so that K and V
// are read once for all of them. The keys of a sequence may be split over several work-items, whose
// results combine.hpp merges.
//   Q K V S P O: tiles     m: running maximum of a row, l: running sum
#pragma once

#include "attention/decode.hpp"

namespace xeflash {

// Returns false and stores nothing if the sums show that this Softmax cannot be used.
template <class Config, class Softmax>
XF_INLINE bool flash_decode(const FwdParams& p, const SplitWork& work) {
  constexpr int Br = Config::block_rows, Bc = Config::block_columns;
  constexpr int d = Config::head_dim / Group::team;  // columns of Q and K that a thread multiplies
  constexpr int dv = Config::block_v;                // columns of O that a thread owns
  using T = typename Config::Element;
  using E = Operand<T, typename Config::CacheElement>;
  using ValueElement = typename Config::ValueElement;

  using QueryTile = RowLeft<E, Br, d, Bc, typename Config::CacheElement>;
  allocate_shared<RowTile<Br, dv>, shared_bytes<QueryTile>()>();

  const Sequence seq(p, work.batch);
  const int head_k = work.head / (p.heads_q / p.heads_k);
  if (seq.sq == 0) return true;
  const typename Config::Mask mask(p, seq, work.head);
  const auto keys = mask.keys_of_split(work.split, p.splits, Bc);
  const bool looks_ahead = brings_ahead<Config, d, dv>(p);
  const int q_column = Group::member() * d,
            column = (work.part * Group::team + Group::member()) * dv;
  const auto k_blocks = streamed<Bc, d>(key_rows<Config>(p, seq, head_k, keys.seen_from, keys.end)
                                            .columns(q_column, Config::head_dim),
                                        looks_ahead);
  const auto v_blocks =
      streamed<Bc, dv>(value_rows<Config>(p, seq, head_k, keys.seen_from, keys.end)
                           .columns(column, Config::head_dim_v),
                       looks_ahead);
  const RowScores<Config> scores{p, seq, mask, keys, work.head, work.heads};
  const Exponents exponents = exponents_of<Config>(p);

  QueryTile Q;
  load(Q, seq.q_heads<const T>(p.q, work.head, work.heads).columns(q_column, Config::head_dim));
  RowOutput<T, Br, dv, ValueElement> sums;
  fill(sums, 0.f);
  RowVec<Br> m(Softmax::first_max(p, exponents));
  RowSum<Br> l;

  for (RowKeyBlocks<Bc, typename Config::Mask::Keys> j(keys); j.more(); j.advance()) {
    const auto K = k_blocks.at(j);
    const auto V = v_blocks.at(j);
    v_blocks.prefetch_block(j);
    RowTile<Br, Bc> S;
    dot_rows(S, Q, K);  // S = Q K^T
    scores.change(S, j.first());
    RowProbs<E, Br, Bc, ValueElement> P;
    Softmax::template step<Config::exp2_degree>(P, S, sums, m, l, exponents);  // P = exp(S - m)
    k_blocks.prefetch_next(j);
    accumulate_rows(sums, P, V);  // O += P V
  }

  auto&& O = settled(sums);
  merge_turns(O, m, l, exponents.decays());
  if (Group::turn() > 0) return true;
  const RowVec<Br> sum = l;
  if constexpr (Softmax::kCanFail) {
    bool near = true;
    each_row<Br>([&](int r) { near &= r >= work.heads || Softmax::is_near(sum[r], exponents); });
    if (!near) return false;
  }
  each_row<Br>([&](int r) {
    if (r < work.heads) store_split<Config>(p, seq, work, column, O, r, m[r], sum[r], exponents);
  });
  return true;
}

// There is one thread, or one team of threads, per tile of heads and split of the keys, and per
// part of the columns of O where O is too wide. The threads of a team also divide the columns of Q
// and K. Where tiles are few, the threads of a group take turns at the keys of a split.
template <class Config>
  requires DecodeMask<typename Config::Mask>
XF_INLINE void flash_decode(const FwdParams& p) {
  const SplitWork work(p, Group::index(), Config::block_rows, Config::parts / Group::team);
  using Softmax = typename Config::Softmax;
  const bool done = flash_decode<Config, Softmax>(p, work);
  if constexpr (Softmax::kCanFail) {
    if (!done) flash_decode<Config, OnlineSoftmax>(p, work);
  }
}

}  // namespace xeflash
