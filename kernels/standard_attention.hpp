// Standard attention, for comparison with FlashAttention: three kernels, with S and P in memory.
//   scores        S = scale Q K^T          softmax_rows  P = softmax(S)
//   weighted_sum  O = P V
// A thread owns the same block of Br rows in each kernel. Blocks of keys that none of its rows sees
// are neither written nor read, although S and P have room for all keys.
//   j: block of keys     Q K V S P O: tiles     m: maximum of a row, l: sum
#pragma once

#include "attention/cache.hpp"
#include "attention/mask.hpp"
#include "attention/softmax.hpp"

namespace xeflash {

// The rows that a thread owns and the range of keys that they see.
template <class Config>
struct RowBlock {
  static constexpr int Br = Config::block_rows, Bc = Config::block_columns;
  Work work;
  Sequence seq;
  TileRows<false, Br> own;
  typename Config::Mask mask;
  typename Config::Mask::Blocks range;

  XF_INLINE RowBlock(const FwdParams& p, int parts)
      : work(Group::index(), parts, (p.max_q - 1) / Br + 1, p.heads_q),
        seq(p, work.batch),
        own(p, seq, work),
        mask(p, seq, own.head),
        range(mask.template k_blocks<Bc>(own.first(), own.last())) {}
  RowBlock(const RowBlock&) = delete;

  // Returns the rows of K or V up to the last key that is seen.
  template <class T>
  XF_INLINE Rows<const T> keys(const TensorArg& t) const {
    return seq.rows_per_key<const T>(t, own.head_k).up_to(range.last);
  }
  // Returns the owned rows of Q or O; with j, those of S or P in the columns of key block j.
  template <class T>
  XF_INLINE Rows<T> of(const TensorArg& t) const {
    return own.template of<T>(t);
  }
  template <class T>
  XF_INLINE Rows<T> of(const TensorArg& t, int j) const {
    return of<T>(t).columns(j * Bc, static_cast<int>(t.row));
  }
};

template <class Config>
XF_INLINE void scores(const StandardParams& p) {
  constexpr int Br = Config::block_rows, Bc = Config::block_columns, d = Config::head_dim;
  using T = typename Config::Element;
  using KeyTile = RightT<T, Bc, d>;
  using QueryTile = Left<T, Br, d, Placed<Rows<const T>, shared_bytes<KeyTile>()>>;
  allocate_shared<Tile<Br, Bc>, shared_bytes<KeyTile>() + shared_bytes<QueryTile>()>();

  const RowBlock<Config> rows(p, 1);
  if (rows.own.is_empty()) return;
  const auto k_rows = rows.template keys<T>(p.k);

  QueryTile Q;
  load(Q, rows.template of<const T>(p.q));
  for (int j = rows.range.begin; j < rows.range.end; ++j) {
    const int key = j * Bc;
    prefetch<Bc, d>(k_rows.from(key + Bc));  // for the next step
    const KeyTile K(k_rows.from(key));
    Tile<Br, Bc> S;
    fill(S, -kInf);  // keys past the end
    mma_ABt(S, Q, K);
    Group::meet_staged();
    each(S, rows.own.row, key, [&](auto s, auto, auto) { return s * p.scale; });  // S = scale Q K^T
    if (!rows.range.is_full(j)) {
      each(S, rows.own.row, key, [&](auto s, auto q, auto k) { return rows.mask.hide(s, q, k); });
      rows.mask.template hide_in<false>(S, rows.own.row, key, [](auto q) { return q; });
    }
    store(rows.template of<float>(p.scores, j), S);
  }
}

template <class Config>
XF_INLINE void softmax_rows(const StandardParams& p) {
  constexpr int Br = Config::block_rows, Bc = Config::block_columns;
  using T = typename Config::Element;

  const RowBlock<Config> rows(p, 1);
  if (rows.own.is_empty()) return;

  const Exponents exponents(1.f, 0, kExp2Headroom);
  ColVec<Br> m(kNoScore);
  ColSum<Br> l;
  for (int j = rows.range.begin; j < rows.range.end; ++j) {
    Tile<Br, Bc> S;
    load(S, rows.template of<const float>(p.scores, j));
    const ColVec<Br> m_new = max(m, row_max(S));  // m_new = max(m, rowmax S)
    // l = exp(m - m_new) l
    l *= map([&](auto a, auto b) { return exponents.decay(a, b); }, m, m_new);
    m = m_new;
    Left<T, Br, Bc> P;
    exp_and_sum<Config::exp2_degree>(P, S, m, l, exponents);  // l += rowsum exp(S - m)
  }
  constexpr float kUnit = 1.f / (uint64_t{1} << kExp2Headroom);  // l is in this unit
  const auto inverse_or_zero = [](auto l) {
    using V = decltype(l);
    return select(l == 0.f, V(0.f), V(divide(V(1.f), l) * kUnit));
  };
  const ColVec<Br> factor = map(inverse_or_zero, ColVec<Br>(l));

  for (int j = rows.range.begin; j < rows.range.end; ++j) {
    Tile<Br, Bc> P;
    load(P, rows.template of<const float>(p.scores, j));
    const ColVec<Br> top = exponents.relative(P, m);
    exp2_minus<Config::exp2_degree>(P, exponents.scale_log2, top);
    P *= factor;  // P = exp(S - m) / l
    store(rows.template of<T>(p.probabilities, j), P);
  }
}

template <class Config>
XF_INLINE void weighted_sum(const StandardParams& p) {
  constexpr int Br = Config::block_rows, Bc = Config::block_columns;
  constexpr int dv = Config::block_v;  // columns of O that a thread owns
  using T = typename Config::Element;
  using ProbabilityTile = Left<T, Br, Bc>;
  using ValueTile = Right<T, Bc, dv>;
  allocate_shared<Tile<Br, dv>, shared_bytes<ValueTile>()>();

  const RowBlock<Config> rows(p, Config::parts);
  if (rows.own.is_empty()) return;
  const int column = rows.work.part * dv;
  const auto v_rows = rows.template keys<T>(p.v).columns(column, Config::head_dim_v);

  Tile<Br, dv> O;
  fill(O, 0.f);
  for (int j = rows.range.begin; j < rows.range.end; ++j) {
    const int key = j * Bc;
    prefetch<Bc, dv>(v_rows.from(key + Bc));  // for the next step
    ProbabilityTile P;
    load(P, rows.template of<const T>(p.probabilities, j));
    const ValueTile V(v_rows.from(key));
    mma_AB(O, P, V);  // O = P V
    Group::meet_staged();
  }
  store(rows.template of<T>(p.o).columns(column, Config::head_dim_v), O);
}

}  // namespace xeflash
