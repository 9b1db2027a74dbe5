// What the kernels of the backward pass are written in: their tiles, their way over the other
// side's blocks, probabilities made again.
//   P = exp(S - m) / l, from the LSE or from scores made again (origin_of)
//   dP = dO V^T   dS = P (dP - Delta) times the slope of the scores' changes
//   Delta = rowsum(dO O) - dLSE, of O and its rest, unless it is given
// With dropout P and dP count where a probability is kept, times keep_scale. The gradients are
// multiplied by that at the end, so Delta is divided by it before.
#pragma once

#include "attention/dropout.hpp"
#include "attention/rest.hpp"
#include "attention/scores.hpp"
#include "attention/softmax.hpp"

namespace xeflash {

// The columns of a matrix that a thread owns, `own` of them, or as a tile in shared memory its
// team. Where a narrow matrix leaves none for it, what it computes is not stored.
struct OwnColumns {
  int part, own, total;

  template <class Matrix>
  XF_INLINE Matrix right_of(const Matrix& m) const {
    const int first = (kStaged ? part * kTeam : part * kTeam + member()) * own;
    return m.columns(first < total ? first : 0, total);
  }
  // As the result, or added to what other keys or queries have given.
  template <class Config, class Matrix, int R, int C>
  XF_INLINE void store_in(const Matrix& m, const Tile<R, C>& t) const {
    const int first = (part * kTeam + member()) * own;
    if (first >= total) return;
    if constexpr (Config::adds_up) {
      add(m.columns(first, total), t, ColVec<R>(1.f));
    } else {
      store(m.columns(first, total), t);
    }
  }
};

// Delta of a block of rows.
template <int Br, class Config>
XF_INLINE ColVec<Br> delta_of(const BwdParams& p, const Sequence& seq, int head, int row) {
  using T = typename Config::Element;
  const auto dout = seq.q_rows<const T>(p.dout, head, 0).from(row);
  const auto dots = [&](const TensorArg& with) {
    return row_dots<Br, Config::head_dim_v>(dout, seq.q_rows<const T>(with, head, 0).from(row));
  };
  const float keep_scale = typename Config::Drop(p, seq, head).keep_scale;
  const ColVec<Br> unit(keep_scale > 0.f ? 1.f / keep_scale : 1.f);
  if (p.given_delta) {
    auto delta = load_values<Br>(seq.per_row(p, p.given_delta, head).from(row), 0.f);
    delta *= unit;
    return delta;
  }
  ColVec<Br> delta = dots(p.o);
  if (p.rest.data) {
    delta = map([](auto a, auto b) { return a + kRestUnit * b; }, delta, dots(p.rest));
  }
  if (p.dlse) {
    const float* first =
        p.dlse + seq.batch * p.dlse_batch + head * p.dlse_head + seq.q0 * p.dlse_row;
    const Rows<const float> dlse{first, p.dlse_row, seq.sq};
    delta = map([](auto a, auto b) { return a - b; }, delta, load_values<Br>(dlse.from(row), 0.f));
  }
  delta *= unit;
  return delta;
}

// What scores of a block of rows are made of: a thread has Bs of Bc keys. kAway: registers are for
// sums of scores.
template <class Config, bool kAway = false>
struct ScoreTiles {
  static constexpr int Br = Config::block_q, Bc = Config::block_k, Bs = Bc / kTeam;
  static constexpr int d = Config::head_dim, dv = Config::head_dim_v;
  using T = typename Config::Element;
  using Matrix = Rows<const T>;
  using ScoreTile = Tile<Br, Bs>;

  using KeyTileT = RightT<T, Bc, d, Matrix>;
  static constexpr int kValues = shared_bytes<KeyTileT>();
  using ValueTileT = RightT<T, Bc, dv, Matrix, kValues>;
  static constexpr int kQuery = kValues + shared_bytes<ValueTileT>();
  template <int C, int Begin>
  using Placed = std::conditional_t<kAway && kStaged, AwayLeft<Matrix, T, Br, C, Begin>,
                                    PlacedLeft<Matrix, T, Br, C, Begin>>;
  using QueryTile = Placed<d, kQuery>;
  static constexpr int kOutput = kQuery + shared_bytes<QueryTile>();
  using OutputGradient = Placed<dv, kOutput>;
  static constexpr int kEnd = kOutput + shared_bytes<OutputGradient>();
  static constexpr int kBytes = kEnd;
  static XF_INLINE void allocate() { allocate_shared<void, kBytes>(); }
};

// And dQ, of which it owns so many columns.
template <class Config>
struct DqTiles : ScoreTiles<Config> {
  using Scores = ScoreTiles<Config>;
  using Scores::Bc, Scores::Br, Scores::Bs;
  using typename Scores::Matrix, typename Scores::T;
  static constexpr int own = Config::block_d;
  using PartTile = PartOfLeft<T, Br, Bs>;
  using QueryGradient = Tile<Br, own>;

  using KeyTile = Right<T, Bc, own, Matrix, Scores::kEnd>;
  static constexpr int kPool = Scores::kEnd + shared_bytes<KeyTile>();
  using Pool = Pooled<T, Br, Bc, kPool>;
  static constexpr int kBytes = kPool + shared_bytes<Pool>();
  static XF_INLINE void allocate() { allocate_shared<void, kBytes>(); }
};

// Of a block of keys, which are the rows of all tiles here: S, P, dP and dS are transposed. A
// thread scores Bs of Br queries, and owns so many columns of dK and of dV.
template <class Config>
struct DkvTiles {
  static constexpr int Bc = Config::block_q, Br = Config::block_k, Bs = Br / kTeam;
  static constexpr int d = Config::head_dim, dv = Config::head_dim_v;
  static constexpr int own_k = Config::block_d, own_v = Config::block_v;
  using T = typename Config::Element;
  using Matrix = Rows<const T>;
  using ScoreTile = Tile<Bc, Bs>;
  using PartTile = PartOfLeft<T, Bc, Bs>;
  using KeyGradient = Tile<Bc, own_k>;
  using ValueGradient = Tile<Bc, own_v>;

  using QueryTileT = RightT<T, Br, d, Matrix>;
  static constexpr int kGradientT = shared_bytes<QueryTileT>();
  using GradientTileT = RightT<T, Br, dv, Matrix, kGradientT>;
  static constexpr int kGradient = kGradientT + shared_bytes<GradientTileT>();
  using GradientTile = Right<T, Br, own_v, Matrix, kGradient>;
  static constexpr int kQuery = kGradient + shared_bytes<GradientTile>();
  using QueryTile = Right<T, Br, own_k, Matrix, kQuery>;
  static constexpr int kKey = kQuery + shared_bytes<QueryTile>();
  using KeyTile = LeftBeside<ValueGradient, Matrix, T, Bc, d, kKey>;
  static constexpr int kValue = kKey + shared_bytes<KeyTile>();
  using ValueTile = LeftBeside<KeyGradient, Matrix, T, Bc, dv, kValue>;
  static constexpr int kProbs = kValue + shared_bytes<ValueTile>();
  using ProbPool = Pooled<T, Bc, Br, kProbs>;
  static constexpr int kScores = kProbs + shared_bytes<ProbPool>();
  using ScorePool = Pooled<T, Bc, Br, kScores>;
  static constexpr int kHanded = kScores + shared_bytes<ScorePool>();
  using HandedProbs = Handed<Bc, Bs, kHanded>;
  static constexpr int kBytes = kHanded + shared_bytes<HandedProbs>();
  static XF_INLINE void allocate() { allocate_shared<void, kBytes>(); }
};

// Beyond this magnitude an LSE in fp32 has lost more of a row's sum than the rounding of P hides.
template <class T>
constexpr float kFarLse = sizeof(T) == 4 ? 64.f : 512.f;

// What P of some rows is relative to, scale_log2 (S - base) - top. In memory there is one word of a
// row that is near 0, its top; that of a far one is marked, so that bases are read for such alone.
constexpr float kMarked = 0x1p60f, kNoKey = 0x1p50f;  // marks are above; the top of an empty row
template <class V>
XF_INLINE V marked(V top) {
  return (top + 1.f) * 0x1p64f;
}
template <class V>
XF_INLINE V unmarked(V top) {
  return select(top > kMarked, V(top * 0x1p-64f - 1.f), top);
}

// The exponent of a sink. Above the limit keys weigh nothing beside it; a mark must not overflow.
template <class V>
XF_INLINE V above_base(float sink, V base, float unit) {
  const V above = (sink - base * unit) * kLog2e;
  return select(above < kNoKey, above, V(kNoKey));
}

// Of rows that a thread has to itself.
template <class OfRows>
struct OwnOrigin {
  OfRows base, top;
  bool far;

  // Makes scores of far rows relative to their base; returns what is left to subtract.
  template <class Tile>
  XF_INLINE OfRows relative(Tile& S) const {
    if (far) lower(S, base);
    return top;
  }
  XF_INLINE void store_in(const BwdParams& p, const Sequence& seq, int head, int row) const {
    const auto of_memory = [](auto base, auto top) {
      return select(base == 0.f, top, marked(top));
    };
    store(seq.per_row(p, p.base, head).from(row), base);
    store(seq.per_row(p, p.top, head).from(row), map(of_memory, base, top));
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

// Of queries that are the columns of a tile.
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

// Probabilities and the gradients of scores. Rows of a tile are queries, or keys if it is
// transposed; a value of each query is given for all of them.
template <class Config, bool kTransposed>
struct Gradients {
  using Mask = typename Config::Mask;
  using Variant = typename Config::ScoreVariant;
  const Mask& mask;
  const Variant variant;
  const typename Config::Drop dropout;
  const float scale;
  const Exponents exponents;

  XF_INLINE Gradients(const ScoreModParams& p, const Sequence& seq, int head, const Mask& mask)
      : mask(mask),
        variant(p, seq, head),
        dropout(p, seq, head),
        scale(p.scale),
        exponents(Variant::kIdentity ? p.scale : 1.f, 0, 0) {}

  // P = exp(S - m) / l, in place of S. Of rows that are far from 0, S - m comes first: it is exact.
  template <class Tile, class Origin>
  XF_INLINE void probabilities(Tile& S, Tile& slopes, bool full, int row, int column,
                               const Origin& origin) const {
    scores(S, slopes, full, row, column);
    const auto top = origin.relative(S);
    exp2_minus<Config::exp2_degree>(S, exponents.scale_log2, top);
  }

  // What the forward's softmax was given, of products S; slopes only if something changes them.
  template <class Tile>
  XF_INLINE void scores(Tile& S, Tile& slopes, bool full, int row, int column) const {
    if constexpr (!Variant::kIdentity) {
      each(S, slopes, row, column, [&](auto& s, auto& slope, auto r, auto c) {
        s = s * scale;
        slope = 1.f;
        if constexpr (kTransposed)
          variant.change(s, slope, c, r);
        else
          variant.change(s, slope, r, c);
      });
    }
    if (!full) hide(S, slopes, row, column);
  }

  // A hidden score has no slope, whatever a user says: that need not hold there.
  template <class Tile>
  XF_INLINE void hide(Tile& S, Tile& slopes, int row, int column) const {
    const auto hidden = [&](auto s, auto r, auto c) {
      if constexpr (kTransposed)
        return mask.hide(s, c, r);
      else
        return mask.hide(s, r, c);
    };
    if constexpr (!Variant::kOfUsers) {
      each(S, row, column, hidden);
    } else {
      each(S, slopes, row, column, [&](auto& s, auto& slope, auto r, auto c) {
        s = hidden(s, r, c);
        slope = select(s == -kInf, decltype(s + s)(0.f), slope);
      });
    }
  }

  // Of what is kept of P only; of what was dropped dP is 0.
  template <class Probs>
  XF_INLINE void drop(Probs& P, int row, int column) const {
    if constexpr (kTransposed)
      dropout.drop_transposed(P, row, column);
    else
      dropout.drop(P, row, column);
  }

  // P, as dS = P (dP - Delta) takes it.
  template <class Tile>
  XF_INLINE void times_slopes(Tile& P, const Tile& slopes) const {
    if constexpr (!Variant::kIdentity) P *= slopes;
  }
  // dS, in place of dP, of the products that scores were made of.
  template <class Tile>
  XF_INLINE void through_changes(Tile& dS, const Tile& slopes) const {
    if constexpr (!Variant::kIdentity) dS *= slopes;
  }
};

// What P of a block of rows is relative to: their LSE. Where that is far from 0, their scores are
// made again, for their maximum, and the sum beside it; a group's threads do so together. If the
// LSE is of a row that is longer than these keys, what it is above theirs is added.
template <class Config>
XF_INLINE OwnOrigin<ColVec<Config::block_q>> origin_of(const ScoreModParams& p, const Sequence& seq,
                                                       int head, const typename Config::Mask& mask,
                                                       const RowSpan<Config::block_q>& rows,
                                                       bool longer = false) {
  using Tiles = ScoreTiles<Config>;
  using T = typename Tiles::T;
  constexpr int Br = Tiles::Br, Bc = Tiles::Bc;
  using OfRows = ColVec<Br>;
  const auto lse = seq.per_row<const float>(p, p.lse, head);
  // A row that sees no key has an infinite one.
  const auto finite = [](auto L) { return select(magnitude(L) == kInf, decltype(L)(0.f), L); };
  const auto of_rows = [&](int row) { return load_values<Br>(lse.from(row), kInf); };
  const OfRows L = of_rows(rows.row);
  const OfRows near = map(
      [](auto L) {
        return select(magnitude(L) == kInf, decltype(L)(kNoKey), decltype(L)(L * kLog2e));
      },
      L);
  OwnOrigin<OfRows> origin{OfRows(0.f), near, false};
  bool far = false;
  for (int row = rows.first(); row <= rows.last(); row += Br) {
    far |= any_beyond(map(finite, of_rows(row)), kFarLse<T>);
  }
  if (!far) return origin;

  const auto range = mask.template k_blocks<Bc>(rows.first(), rows.last());
  const auto own = mask.template k_blocks<Bc>(rows.row, rows.own_last());
  const auto k_rows = seq.k_rows<const T>(p.k, head / (p.heads_q / p.heads_k));
  const BlocksOf<typename Tiles::KeyTileT> keys_t(k_rows);
  const Gradients<Config, false> gradients(p, seq, head, mask);
  const Exponents& exponents = gradients.exponents;
  typename Tiles::QueryTile Q;
  load(Q, seq.q_rows<const T>(p.q, head, 0).from(rows.row));
  OfRows m(kNoScore);
  ColSum<Br> sum(OfRows(0.f));
  for (int j = range.begin; j < range.end; ++j) {
    const auto K_t = keys_t.at(j * Bc);
    if (own.has(j)) {
      Tile<Br, Bc> S, slopes;
      mma_ABt(S, Q, K_t);  // S = Q K^T
      gradients.scores(S, slopes, own.is_full(j), rows.row, j * Bc);
      const OfRows m_new = max(m, row_max(S));
      sum *= map(  // l = exp(m - m_new) l
          [&](auto a, auto b) { return exp2(decltype(a)((a - b) * exponents.scale_log2)); }, m,
          m_new);
      m = m_new;
      S -= m;
      exp2_minus<Config::exp2_degree>(S, exponents.scale_log2, OfRows(0.f));
      add_row_sums(sum, S);  // l += rowsum exp(S - m)
    }
    reuse_shared();
  }

  // A far row may have a sink and no key.
  const OfRows l = sum;
  const auto is_far = [&](auto L) { return magnitude(finite(L)) > kFarLse<T>; };
  const float sink = p.sinks ? p.sinks[head] : -kInf;
  origin.base =
      map([&](auto L, auto l, auto m) { return select(is_far(L) & l > 0.f, m, decltype(m)(0.f)); },
          L, l, m);
  origin.top = map(
      [&](auto L, auto l, auto base, auto near) {
        using V = decltype(base);
        const V keys = select(l > 0.f, log2(V(select(l > 0.f, l, V(1.f)))), V(-kInf));
        const V own = above_base(sink, base, exponents.unit), larger = max(keys, own);
        const V smaller = -magnitude(V(keys - own));
        const auto one = own == -kInf | l == 0.f;
        V total = select(one, larger, V(larger + log2(V(1.f + exp2(smaller)))));
        if (longer) {  // what L is above these keys' by more than its last bit
          const V above = L - (base * exponents.unit + total * kLn2);
          total += select(above > magnitude(L) * 0x1p-23f, V(above * kLog2e), V(0.f));
        }
        return select(is_far(L) & larger > -kInf, total, near);
      },
      L, l, origin.base, near);
  origin.far = any_beyond(origin.base, 0.f);
  return origin;
}

}  // namespace xeflash
