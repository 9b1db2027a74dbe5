// FlashAttention-2, Algorithm 1 (Dao, 2023): forward, one block of Br query rows per thread, or per
// team of threads where O is too wide for one; softmax in base 2.
//   i, j: block of queries, of keys     Q K V S P O: tiles     m: running maximum of a row, l:
//   running sum
#pragma once

#include "attention/cache.hpp"
#include "attention/dropout.hpp"
#include "attention/mask.hpp"
#include "attention/softmax.hpp"
#include "attention/variant.hpp"

namespace xeflash {

template <class Config>
XF_INLINE void flash_fwd(const FwdParams& p, const Work& work) {
  constexpr int Br = Config::block_q, Bc = Config::block_k, d = Config::head_dim;
  constexpr int dv = Config::block_v;  // columns of O that a thread owns
  constexpr int Bs = Bc / kTeam;       // keys of a block that it scores
  using T = typename Config::Element;
  using E = Operand<T, typename Config::CacheElement>;
  using ScoreVariant = typename Config::ScoreVariant;
  using KeyTile = Keys<E, Bc, d, CacheBlock<Config>>;
  using ValueTile = Values<E, Bc, dv, KeyTile, CacheBlock<Config>>;
  using OwnRows = TileRows<Config::packs_heads, Br>;
  using QueryTile = Query<typename OwnRows::template Matrix<const T>, E, Br, d, KeyTile, ValueTile>;
  using JointP = Joint<E, Br, Bc, KeyTile, ValueTile, QueryTile>;
  allocate_shared<Tile<Br, dv>, KeyTile, ValueTile, QueryTile, JointP>();

  const Sequence seq(p, work.batch);
  const OwnRows rows(p, seq, work);
  if (rows.is_empty()) return;
  const int row = rows.row, head_k = rows.head_k;
  const Window window(p, seq);
  const BlockRange range =
      window.template k_blocks<Bc>(rows.query(rows.first()), rows.query(rows.last()));
  const auto k_rows = key_rows<Config>(p, seq, head_k, range.first_key, range.keys);
  const int team_column = work.part * kTeam * dv, column = team_column + member() * dv;
  const auto v_rows = value_rows<Config>(p, seq, head_k, range.first_key, range.keys)
                          .columns(team_column, Config::head_dim_v);
  const ScoreVariant variant(p, seq, rows.head);
  const typename Config::Drop dropout(p, seq, rows.head);

  const float scale = magnitude(p.scale);
  const Exponents exponents = exponents_of<Config>(p);

  QueryTile Q;
  load(Q, rows.template of<const T>(p.q));
  if (Config::any_scale && p.scale < 0) negate(Q);
  Tile<Br, dv> O;
  fill(O, 0.f);
  ColVec<Br> m(kNoScore);
  ColSum<Br> l(0.f);
  const auto decay = [&](const ColVec<Br>& from, const ColVec<Br>& to) {  // exp(from - to)
    return map([&](auto a, auto b) { return exponents.decay(a, b); }, from, to);
  };

  for (int j = range.begin + key_turn(); j < range.end; j += kKeyTurns) {
    const int key = j * Bc, scored = key + member() * Bs, next = key + kKeyTurns * Bc;
    prefetch<Bc, d>(block_of<Bc>(k_rows, next));
    prefetch<Bc, kTeam * dv>(block_of<Bc>(v_rows, next));
    const KeyTile K(block_of<Bc>(k_rows, key));
    Tile<Br, Bs> S;
    mma_ABt(S, Q, K);  // S = Q K^T
    if constexpr (!ScoreVariant::kIdentity) {
      each(S, row, scored,
           [&](auto s, auto q, auto k) { return variant.score(s * scale, rows.query(q), k); });
    }
    if (!range.is_full(j)) {
      each(S, row, scored,
           [&](auto s, auto q, auto k) { return window.hide(s, rows.query(q), k); });
    }

    PartOfLeft<E, Br, Bs> P;
    // P = exp(S - m), l = rowsum P
    online_softmax<Config::exp2_degree>(P, S, O, m, l, exponents);
    dropout.drop(P, row, scored);
    const auto& all_P = joined<JointP>(P, O, m, l, decay);  // of all keys of the block

    const ValueTile V(block_of<Bc>(v_rows, key));
    mma_AB(O, all_P, V);  // O += P V
  }

  merge_turns(O, m, l, decay);
  sum_of_team(l);
  if (key_turn() != 0) return;
  const ColVec<Br> sum = l, sinks = p.sinks ? rows.sinks(p) : ColVec<Br>(0.f);
  const auto state = [&](auto m, auto l, auto sink) {
    RowState row(m, l, exponents);
    if (p.sinks) row.add_sink(sink);
    return row;
  };
  const float factor = dropout.keep_scale * p.v_scale;
  O *= map([&](auto... x) { return state(x...).normaliser() * factor; }, m, sum, sinks);  // O / l
  store(rows.template of<T>(p.o).columns(column, Config::head_dim_v), O);
  if (p.lse && column == 0) {
    const auto lse = [&](auto... x) { return state(x...).log_sum_exp(p.empty_lse); };
    store(rows.lse(p), map(lse, m, sum, sinks));
  }
}

// One thread per block of rows of a head, and per part of the columns of O where they are too
// many for a thread.
template <class Config>
XF_INLINE void flash_fwd(const FwdParams& p) {
  constexpr int Br = Config::block_q;
  const int heads = Config::packs_heads ? p.heads_k : p.heads_q;
  const int rows = p.heads_q / heads * p.max_q;
  flash_fwd<Config>(p, Work(group_index(), Config::parts / kTeam, (rows - 1) / Br + 1, heads));
}

}  // namespace xeflash
