// Attention of one query token (Flash-Decoding, Dao et al., 2023): memory-bound, so no matrix unit.
// The Br = Hq / Hkv heads that share a KV head are the rows of a tile, K and V stream past once;
// the keys of a sequence may be split over several work-items, whose results combine.hpp merges.
//   Q K V S P O: tiles     m: running maximum of a row, l: running sum
#pragma once

#include "attention/cache.hpp"
#include "attention/mask.hpp"
#include "attention/partial.hpp"
#include "attention/softmax.hpp"
#include "attention/variant.hpp"

namespace xeflash {

// False, and nothing stored, if the softmax could not be computed this way.
template <class Config, class Softmax>
XF_INLINE bool flash_decode(const FwdParams& p, const SplitWork& work) {
  constexpr int Br = Config::block_q, Bc = Config::block_k, d = Config::head_dim,
                dv = Config::head_dim_v;
  using T = typename Config::Element;
  using E = typename Config::CacheElement;
  using ScoreVariant = typename Config::ScoreVariant;

  const Sequence seq(p, work.batch);
  const int head_k = work.head / (p.heads_q / p.heads_k);
  if (seq.sq == 0) return true;
  const KeyRange keys = Window(p, seq).keys_of_split(work.split, p.splits, Bc);
  const auto k_rows = key_rows<Config>(p, seq, head_k, keys.seen_from, keys.end);
  const auto v_rows = value_rows<Config>(p, seq, head_k, keys.seen_from, keys.end);
  const float scale = p.scale < 0 ? -p.scale : p.scale;
  const float scale_log2 = ScoreVariant::kIdentity ? scale * kLog2e : 1.f;

  RowLeft<E, Br, d> Q;
  load(Q, seq.q_heads<const T>(p.q, work.head, work.heads));
  if (p.scale < 0) negate(Q);
  RowTile<Br, dv> O;
  fill(O, 0.f);
  RowVec<Br> m(Softmax::first_max(p));
  RowSum<Br> l;

  for (int key = keys.begin; key < keys.end; key += Bc) {
    const auto K = block_of<Bc>(k_rows, key), V = block_of<Bc>(v_rows, key);
    prefetch<dv>(V, 0, Bc);
    RowTile<Br, Bc> S;
    dot_rows(S, Q, K);  // S = Q K^T
    if constexpr (!ScoreVariant::kIdentity) {
      for (int r = 0; r < Br; ++r) {
        const ScoreVariant variant(p, seq, work.head + (r < work.heads ? r : 0));
        each_in_row(S, r, key,
                    [&](auto s, auto k) { return variant.score(s * scale, 0, k) * kLog2e; });
      }
    }
    if (key < keys.seen_from || keys.end - key < Bc) {
      hide_columns(S, keys.seen_from - key, keys.end - key);
    }
    RowTile<Br, Bc> P;
    // P = exp(S - m), l = rowsum P
    Softmax::template step<Config::exp2_degree>(P, S, O, m, l, scale_log2);
    prefetch<d>(block_of<Bc>(k_rows, key + Bc), 0, Bc);
    accumulate_rows(O, P, V);  // O += P V
  }

  if constexpr (Softmax::kCanFail) {
    for (int r = 0; r < work.heads; ++r) {
      if (!Softmax::is_near(reduce_add(l.x[r]))) return false;
    }
  }
  for (int r = 0; r < work.heads; ++r) {
    RowState row{m.x[r], reduce_add(l.x[r])};
    if (p.sinks && work.split == 0) row.add_sink(p.sinks[work.head + r] * kLog2e);
    if (p.splits == 1) {
      store_row(seq.q_rows<T>(p.o, work.head + r, 0).data, O, r, row.normaliser() * p.v_scale);
      if (p.lse) *seq.lse(p, work.head + r) = row.log_sum_exp(p.empty_lse);
    } else {
      const Partial part(p, work.batch, work.head + r, dv);
      store_row(part.o + work.split * part.o_stride, O, r, row.normaliser() * p.v_scale);
      part.lse[work.split] = row.log_sum_exp(-kInf);
    }
  }
  return true;
}

// One work-item per tile of heads and split of the keys.
template <class Config>
XF_INLINE void flash_decode(const FwdParams& p) {
  const SplitWork work(p, group_index(), Config::block_q);
  using Softmax = typename Config::Softmax;
  const bool done = flash_decode<Config, Softmax>(p, work);
  if constexpr (Softmax::kCanFail) {
    if (!done) flash_decode<Config, OnlineSoftmax>(p, work);
  }
}

}  // namespace xeflash
