// FlashAttention-2, Algorithm 1 (Dao, 2023): forward, one block of Br query rows per thread,
// softmax in base 2.
//   i, j: block of queries, of keys     Q K V S P O: tiles     m: running maximum of a row, l:
//   running sum
#pragma once

#include "attention/dropout.hpp"
#include "attention/mask.hpp"
#include "attention/softmax.hpp"
#include "attention/variant.hpp"

namespace xeflash {

template <class Config>
XF_INLINE void flash_fwd(const FwdParams& p, const Work& work) {
  constexpr int Br = Config::block_q, Bc = Config::block_k, d = Config::head_dim;
  constexpr int dv = Config::block_v;  // columns of O that a thread owns
  using T = typename Config::Element;
  using ScoreVariant = typename Config::ScoreVariant;
  using KeyTile = Keys<T, Bc, d>;
  using ValueTile = Values<T, Bc, dv, KeyTile>;
  using QueryTile = Query<T, Br, d, KeyTile, ValueTile>;
  allocate_shared<KeyTile, ValueTile, QueryTile>();

  const Sequence seq(p, work.batch);
  const TileRows<Config::rows_are_heads> rows(p, seq, work, Br);
  const int row = rows.row, head_k = rows.head_k;
  constexpr int kTogether = kStaged ? kThreads * Br : Br;  // rows that pass the same keys
  const int first = row - row % kTogether;
  if (first >= rows.count) return;
  const Window window(p, seq);
  const BlockRange range = window.template k_blocks<kTogether, Bc>(rows.query(first));
  const auto k_rows = seq.k_rows<const T>(p.k, head_k).up_to(range.keys);
  const int column = work.part * dv;
  const auto v_rows =
      seq.k_rows<const T>(p.v, head_k).up_to(range.keys).columns(column, Config::head_dim_v);
  const ScoreVariant variant(p, seq, rows.head);
  const typename Config::Drop dropout(p, seq, rows.head);

  const float scale = p.scale < 0 ? -p.scale : p.scale;
  const float scale_log2 = ScoreVariant::kIdentity ? scale * kLog2e : 1.f;

  QueryTile Q;
  load(Q, rows.template of<const T>(p.q));
  if (Config::any_scale && p.scale < 0) negate(Q);
  Tile<Br, dv> O;
  fill(O, 0.f);
  // A sink is a key without a value, seen first.
  const float sink = p.sinks ? p.sinks[rows.head] * kLog2e : kNoScore;
  ColVec<Br> m(max(sink, kNoScore));
  ColSum<Br> l(sink > kNoScore ? 1.f : 0.f);

  for (int j = range.begin; j < range.end; ++j) {
    const int key = j * Bc;
    prefetch<Bc, d>(k_rows.from(key + Bc));  // of the next step
    prefetch<Bc, dv>(v_rows.from(key + Bc));
    const KeyTile K(k_rows.from(key));
    Tile<Br, Bc> S;
    mma_ABt(S, Q, K);  // S = Q K^T
    if constexpr (!ScoreVariant::kIdentity) {
      each(S, row, key, [&](auto s, auto q, auto k) {
        return variant.score(s * scale, rows.query(q), k) * kLog2e;
      });
    }
    if (!range.is_full(j)) {
      each(S, row, key, [&](auto s, auto q, auto k) { return window.hide(s, rows.query(q), k); });
    }

    Left<T, Br, Bc> P;
    online_softmax<Config::exp2_degree>(P, S, O, m, l, scale_log2);  // P = exp(S - m), l = rowsum P
    dropout.drop(P, row, key);

    const ValueTile V(v_rows.from(key));
    mma_AB(O, P, V);  // O += P V
  }

  O *= inverse_or_zero(l) * dropout.keep_scale;  // O = O / l
  store(rows.template of<T>(p.o).columns(column, Config::head_dim_v), O);
  if (p.lse && column == 0) rows.store_lse(p, log_sum_exp(m, l, p.empty_lse));
}

// One thread per block of rows of a head, and per part of the columns of O where they are too
// many for a thread.
template <class Config>
XF_INLINE void flash_fwd(const FwdParams& p) {
  constexpr int Br = Config::block_q;
  constexpr bool kHeads = Config::rows_are_heads;
  const int rows = kHeads ? p.heads_q / p.heads_k : p.max_q, heads = kHeads ? p.heads_k : p.heads_q;
  flash_fwd<Config>(p, Work(group_index(), kThreads, Config::parts, (rows - 1) / Br + 1, heads));
}

}  // namespace xeflash
