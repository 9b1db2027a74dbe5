// The origin of a query's scores. The exponents of the backward pass are relative to it. It is the
// query's LSE. Where the LSE is far from 0, rounding it to fp32 has lost more of the sum than P may
// lose: the scores are then recomputed, and the origin is their maximum, with the log of the sum
// beside it.
#pragma once

#include "attention/backward.hpp"
#include "attention/score_gradients.hpp"

namespace xeflash {

// Beyond this magnitude an LSE in fp32 has lost more of a row's sum than the rounding of P hides.
template <class T>
constexpr float kFarLse = sizeof(T) == 4 ? 64.f : 512.f;

// The exponents of a row are scale_log2 (S - base) - top. The base of a near row is 0. The top of a
// far row is marked in memory, so that the loop over queries reads bases only where a row is far.
constexpr float kMarked = 0x1p60f, kNoKey = 0x1p50f;  // marked tops are larger; top of an empty row
template <class V>
XF_INLINE V marked(V top) {
  return (top + 1.f) * 0x1p64f;
}
template <class V>
XF_INLINE V unmarked(V top) {
  return select(top > kMarked, V(top * 0x1p-64f - 1.f), top);
}

// Returns the exponent of a sink relative to base, limited so that a marked top cannot overflow:
// above the limit keys weigh nothing beside the sink.
template <class V>
XF_INLINE V above_base(float sink, V base, float unit) {
  const V above = (sink - base * unit) * kLog2e;
  return select(above < kNoKey, above, V(kNoKey));
}

// The origins of the rows of a tile.
template <class OfRows>
struct OwnOrigin {
  OfRows base, top;
  bool far;

  XF_INLINE const OwnOrigin& at(int) const { return *this; }  // the same for each block

  // Subtracts base from S where rows are far; returns what is left to subtract.
  template <class Tile>
  XF_INLINE OfRows relative(Tile& S) const {
    if (far) lower(S, base);
    return top;
  }
  XF_INLINE void store_in(const BwdParams& p, const Sequence& seq, int head, int row) const {
    const auto stored = [](auto base, auto top) { return select(base == 0.f, top, marked(top)); };
    store(seq.per_row(p, p.base, head).from(row), base);
    store(seq.per_row(p, p.top, head).from(row), map(stored, base, top));
  }
};
template <int Br>
XF_INLINE OwnOrigin<ColVec<Br>> load_origin(const BwdParams& p, const Sequence& seq, int head,
                                            int row) {
  const ColVec<Br> base = load_values<Br>(seq.per_row<const float>(p, p.base, head).from(row), 0.f);
  const ColVec<Br> top =
      load_values<Br>(seq.per_row<const float>(p, p.top, head).from(row), kNoKey);
  return {base, map([](auto x) { return unmarked(x); }, top), any_beyond(base, 0.f)};
}

// The origins of queries that are the columns of a tile, read block by block.
template <int C>
struct PassedOrigins {
  AcrossRows<C> bases, tops;

  XF_INLINE PassedOrigins(const BwdParams& p, const Sequence& seq, int head)
      : bases(seq.line<const float>(p, p.base, head)),
        tops(seq.line<const float>(p, p.top, head)) {}

  struct At {
    PassedOrigins& all;
    const int first;
    const Across<C> top;

    template <class Tile>
    XF_INLINE Across<C> relative(Tile& S) const {
      if (!any_beyond(top, kMarked)) return top;
      lower(S, all.bases.at(first, 0.f));
      return map([](auto x) { return unmarked(x); }, top);
    }
  };
  XF_INLINE At at(int first) { return {*this, first, tops.at(first, kNoKey)}; }
};

// Returns the origins of a block of rows. They are the LSE; where that is far from 0 for any row of
// the group, its threads recompute the scores together, for their maximum and sum. If the LSE
// belongs to rows of more keys than these (`longer`), the amount by which it exceeds the LSE of
// these keys is added.
template <class Config>
XF_INLINE OwnOrigin<ColVec<Config::block_rows>> origin_of(const ScoreModParams& p,
                                                          const Sequence& seq, int head,
                                                          const typename Config::Mask& mask,
                                                          const RowSpan<Config::block_rows>& rows,
                                                          bool longer = false) {
  using Tiles = ScoreTiles<Config>;
  using T = typename Tiles::T;
  constexpr int Br = Tiles::Br, Bc = Tiles::Bc;
  using OfRows = ColVec<Br>;
  const auto lse = seq.per_row<const float>(p, p.lse, head);
  // The LSE of a row that sees no key is infinite.
  const auto finite = [](auto L) { return select(magnitude(L) == kInf, decltype(L)(0.f), L); };
  const auto lse_at = [&](int row) { return load_values<Br>(lse.from(row), kInf); };
  const OfRows L = lse_at(rows.row);
  const OfRows near = map(
      [](auto L) {
        return select(magnitude(L) == kInf, decltype(L)(kNoKey), decltype(L)(L * kLog2e));
      },
      L);
  OwnOrigin<OfRows> origin{OfRows(0.f), near, false};
  bool far = false;
  for (int row = rows.first(); row <= rows.last(); row += Br) {
    far |= any_beyond(map(finite, lse_at(row)), kFarLse<T>);
  }
  if (!far) return origin;

  const auto range = mask.template k_blocks<Bc>(rows.first(), rows.last());
  const auto own = mask.template k_blocks<Bc>(rows.row, rows.own_last());
  const auto k_rows = seq.rows_per_key<const T>(p.k, head / (p.heads_q / p.heads_k));
  const BlocksOf<typename Tiles::KeyTileT> keys_t(k_rows);
  const ScoreChanges<Config, false> changes(p, seq, head, mask);
  const Exponents& exponents = changes.exponents;
  typename Tiles::QueryTile Q;
  load(Q, seq.rows_per_query<const T>(p.q, head, 0).from(rows.row));
  OfRows m(kNoScore);
  ColSum<Br> sum(OfRows(0.f));
  for (int j = range.next(range.begin, 1); j < range.end; j = range.next(j + 1, 1)) {
    bring_together(j * Bc, keys_t);
    if (own.has(j)) {
      Tile<Br, Bc> S, slopes;
      mma_ABt(S, Q, keys_t.brought(j * Bc));  // S = Q K^T
      changes.scores(S, slopes, own.is_full(j), rows.row, j * Bc);
      const OfRows m_new = max(m, row_max(S));
      sum *= map(  // l = exp(m - m_new) l
          [&](auto a, auto b) { return exp2(decltype(a)((a - b) * exponents.scale_log2)); }, m,
          m_new);
      m = m_new;
      S -= m;
      exp2_minus<Config::exp2_degree>(S, exponents.scale_log2, OfRows(0.f));
      add_row_sums(sum, S);  // l += rowsum exp(S - m)
    }
  }

  // A far row may have a sink and no key.
  const OfRows l = sum;
  const auto is_far = [&](auto L) { return magnitude(finite(L)) > kFarLse<T>; };
  const float sink = p.sinks ? p.sinks[head] : -kInf;
  origin.base = map(
      [&](auto L, auto l, auto m) { return select(is_far(L) & (l > 0.f), m, decltype(m)(0.f)); }, L,
      l, m);
  origin.top = map(
      [&](auto L, auto l, auto base, auto near) {
        using V = decltype(base);
        const V keys = select(l > 0.f, log2(V(select(l > 0.f, l, V(1.f)))), V(-kInf));
        const V own = above_base(sink, base, exponents.unit), larger = max(keys, own);
        const V smaller = -magnitude(V(keys - own));
        const auto one = (own == -kInf) | (l == 0.f);
        V total = select(one, larger, V(larger + log2(V(1.f + exp2(smaller)))));
        if (longer) {  // the excess of L over these keys' LSE, if more than L's last bit
          const V above = L - (base * exponents.unit + total * kLn2);
          total += select(above > magnitude(L) * 0x1p-23f, V(above * kLog2e), V(0.f));
        }
        return select(is_far(L) & (larger > -kInf), total, near);
      },
      L, l, origin.base, near);
  origin.far = any_beyond(origin.base, 0.f);
  return origin;
}

}  // namespace xeflash
