// FlashAttention-2, Algorithm 2 (Dao, 2023), as published: all five products in one pass, for
// devices whose work-items have memory of their own. A work-item takes one KV head at a time: it
// computes dK and dV block by block as flash_bwd_dkv does, and each block of keys adds its part of
// dQ to all query heads that share the KV head, in fp32 and in the order of the blocks.
#pragma once

#include "flash_bwd_dkv.hpp"

namespace xeflash {

// dQ of the query heads of a work-item: one transposed tile per block of queries.
template <class Config>
struct SummedQueries {
  static constexpr int Bc = Config::block_rows, Br = Config::block_columns, d = Config::head_dim;
  using T = typename Config::Element;
  using Block = UprightTile<d, Br>;
  Block* const first;
  const int blocks, first_head;  // `blocks` per head
  Upright<T, Bc, d> K;

  XF_INLINE SummedQueries(const BwdParams& p, const Sequence& seq, int worker, int first_head)
      : first(reinterpret_cast<Block*>(p.query_sums + worker * p.worker_sums)),
        blocks((seq.sq + Br - 1) / Br),
        first_head(first_head) {}
  XF_INLINE Block& block(int head, int i) const { return first[(head - first_head) * blocks + i]; }
  template <class Rows>
  XF_INLINE void take_keys(const Rows& k_rows) {
    load(K, k_rows);
  }
  // Rows past the last key have no gradient that is stored, but they would add to dQ: where the
  // block has such rows, no block of queries counts as full, so that the mask hides them.
  template <class Blocks>
  XF_INLINE void hide_missing(Blocks& own, const RowSpan<Bc>& keys) {
    if (keys.own_last() - keys.row < Bc - 1) own.have_none_full();
  }
  template <class ScoreGradient>
  XF_INLINE void add(int head, int i, const ScoreGradient& dS) {
    mma_upright(block(head, i), K, dS.tile);  // dQ^T += K^T dS
  }
};

template <class Config>
  requires BackwardMask<typename Config::Mask>
XF_INLINE void flash_bwd(const BwdParams& p) {
  using Queries = SummedQueries<Config>;
  const int worker = static_cast<int>(Group::index()), heads = p.heads_q / p.heads_k;
  for (int64_t pair = worker; pair < int64_t{p.batch} * p.heads_k; pair += p.workers) {
    Work work(pair, 1, 1, p.heads_k);
    const Sequence seq(p, work.batch);
    const int first = work.head * heads, end = first + heads;
    Queries dQ(p, seq, worker, first);
    for (int head = first; head < end; ++head) {
      for (int i = 0; i < dQ.blocks; ++i) fill(dQ.block(head, i), 0.f);
      constexpr int Br = Config::block_rows;
      const typename Config::Mask mask(p, seq, head);
      for (RowSpan<Br> rows{0, seq.sq}; !rows.is_empty(); rows.row += Br) {
        const auto origin = origin_of<Config>(p, seq, head, mask, rows, p.longer);
        origin.store_in(p, seq, head, rows.row);
        const auto delta = delta_of<Br, Config>(p, seq, head, rows.row);
        store(seq.per_row(p, p.delta, head).from(rows.row), delta);
      }
    }
    for (work.block = 0; work.block * Queries::Bc < seq.sk; ++work.block) {
      flash_bwd_dkv<Config, Makes::all>(p, work, dQ);
    }
    const float factor = p.scale * typename Config::Drop(p, seq, 0).keep_scale;
    for (int head = first; head < end; ++head) {
      const auto rows = seq.rows_per_query<typename Config::Result>(p.dq, head, 0);
      for (int i = 0; i < dQ.blocks; ++i) {
        store_upright<Queries::d, Config::adds_up>(rows.from(i * Queries::Br), dQ.block(head, i),
                                                   factor);
      }
    }
  }
}

}  // namespace xeflash
