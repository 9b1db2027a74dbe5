// What the kernels of the backward pass are written in: their tiles, their way over the other
// side's blocks, probabilities made again from the LSE.
//   P = exp(S - L)   dP = dO V^T   dS = P (dP - Delta) times the slope of the scores' changes
//   Delta = rowsum(dO O) - dLSE
// With dropout P and dP count where a probability is kept, times keep_scale. The gradients are
// multiplied by that at the end, so Delta is divided by it before.
#pragma once

#include "attention/dropout.hpp"
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
  template <class Matrix, class Tile>
  XF_INLINE void store_in(const Matrix& m, const Tile& t) const {
    const int first = (part * kTeam + member()) * own;
    if (first < total) store(m.columns(first, total), t);
  }
};

// Delta of a block of rows.
template <int Br, class Config>
XF_INLINE ColVec<Br> delta_of(const BwdParams& p, const Sequence& seq, int head, int row) {
  using T = typename Config::Element;
  ColVec<Br> delta = row_dots<Br, Config::head_dim_v>(
      seq.q_rows<const T>(p.o, head, 0).from(row), seq.q_rows<const T>(p.dout, head, 0).from(row));
  if (p.dlse) {
    const float* first =
        p.dlse + seq.batch * p.dlse_batch + head * p.dlse_head + seq.q0 * p.dlse_row;
    const Rows<const float> dlse{first, p.dlse_row, seq.sq};
    delta = map([](auto a, auto b) { return a - b; }, delta, load_values<Br>(dlse.from(row), 0.f));
  }
  const float keep_scale = typename Config::Drop(p, seq, head).keep_scale;
  if (keep_scale > 0.f) delta *= ColVec<Br>(1.f / keep_scale);
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
  static XF_INLINE void allocate() { allocate_shared<void, kEnd>(); }
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
  static XF_INLINE void allocate() { allocate_shared<void, kPool + shared_bytes<Pool>()>(); }
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
  static XF_INLINE void allocate() {
    allocate_shared<void, kHanded + shared_bytes<HandedProbs>()>();
  }
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

  XF_INLINE Gradients(const ScoreModParams& p, const Sequence& seq, int head, const Mask& mask)
      : mask(mask), variant(p, seq, head), dropout(p, seq, head), scale(p.scale) {}

  // P = exp(S - L), in place of S; slopes of the scores only if something changes them.
  template <class Tile, class OfQuery>
  XF_INLINE void probabilities(Tile& S, Tile& slopes, bool full, int row, int column,
                               const OfQuery& lse) const {
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
    const OfQuery top = map([](auto l) { return select(l == -kInf, decltype(l)(kInf), l); }, lse);
    const float unit = Variant::kIdentity ? scale : 1.f;
    exp2_minus<Config::exp2_degree>(S, unit * kLog2e, map([](auto l) { return l * kLog2e; }, top));
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

}  // namespace xeflash
