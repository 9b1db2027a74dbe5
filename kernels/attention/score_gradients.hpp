// P of a block and the gradients of its scores:
//   P = exp(S - m) / l, relative to the origin of each query (see origin.hpp)
//   dP = dO V^T   dS = P (dP - Delta) times the slope of the variant that changed the scores
//   Delta = rowsum(dO O) - dLSE, with O and its residual, unless the caller gives Delta
// Dropout zeroes P in dV and dP, and scales what it keeps by keep_scale. Kernels multiply gradients
// by keep_scale only at the end, so Delta is divided by it here.
// Word: row_dots  returns rowsum(A B) of rows in memory
#pragma once

#include "attention/dropout.hpp"
#include "attention/residual.hpp"
#include "attention/scores.hpp"
#include "attention/softmax.hpp"
#include "tile/elsewhere.hpp"

namespace xeflash {

// Returns Delta of a block of rows.
template <int Br, class Config>
XF_INLINE ColVec<Br> delta_of(const BwdParams& p, const Sequence& seq, int head, int row) {
  using T = typename Config::Element;
  const auto dout = seq.rows_per_query<const T>(p.dout, head, 0).from(row);
  const auto dots = [&](const TensorArg& with) {
    return row_dots<Br, Config::head_dim_v>(dout,
                                            seq.rows_per_query<const T>(with, head, 0).from(row));
  };
  const float keep_scale = typename Config::Drop(p, seq, head).keep_scale;
  const ColVec<Br> unit(keep_scale > 0.f ? 1.f / keep_scale : 1.f);
  if (p.given_delta) {
    auto delta = load_values<Br>(seq.per_row(p, p.given_delta, head).from(row), 0.f);
    delta *= unit;
    return delta;
  }
  ColVec<Br> delta = dots(p.o);
  if (p.residual.data) {
    delta = map([](auto a, auto b) { return a + kResidualUnit * b; }, delta, dots(p.residual));
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

// Computes P of a block of scores, and the slopes of the variant that changed the scores. The rows
// of a tile are queries, or keys if the tile is transposed.
template <class Config, bool kTransposed>
struct ScoreChanges {
  using Mask = typename Config::Mask;
  using Variant = typename Config::ScoreVariant;
  const Mask& mask;
  const Variant variant;
  const typename Config::Drop dropout;
  const float scale;
  const Exponents exponents;

  XF_INLINE ScoreChanges(const ScoreModParams& p, const Sequence& seq, int head, const Mask& mask)
      : mask(mask),
        variant(p, seq, head),
        dropout(p, seq, head),
        scale(p.scale),
        exponents(Variant::kIdentity ? p.scale : 1.f, 0, 0) {}

  // P = exp(S - m) / l, in place of S. For far rows, S - m comes first, because it is exact.
  template <class Tile, class Origin>
  XF_INLINE void probabilities(Tile& S, Tile& slopes, bool full, int row, int column,
                               const Origin& origin) const {
    scores(S, slopes, full, row, column);
    const auto top = origin.relative(S);
    exp2_minus<Config::exp2_degree>(S, exponents.scale_log2, top);
  }

  // Turns products S into the scores that the forward's softmax was given; sets slopes only if a
  // variant changes scores.
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

  // Sets the slope of a hidden score to 0: a user's slope need not be valid there.
  template <class Tile>
  XF_INLINE void hide(Tile& S, Tile& slopes, int row, int column) const {
    mask.template hide_in<kTransposed>(S, row, column, [](auto q) { return q; });
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

  // Zeroes the elements of P, or of dP, whose probability was dropped.
  template <class Probs>
  XF_INLINE void drop(Probs& P, int row, int column) const {
    dropout.template drop<kTransposed>(P, row, column);
  }

  template <class Tile>
  XF_INLINE void times_slopes(Tile& P, const Tile& slopes) const {
    if constexpr (!Variant::kIdentity) P *= slopes;
  }
};

// Delta of a thread's own rows: the same values at each block. Where tiles are transposed, each
// block has other queries, whose Delta and origin are read by AcrossRows and PassedOrigins.
template <int R>
struct OwnDelta {
  ColVec<R> values;
  XF_INLINE const ColVec<R>& at(int, float) const { return values; }
};
template <int Br>
XF_INLINE OwnDelta<Br> load_delta(const BwdParams& p, const Sequence& seq, int head, int row) {
  return {load_values<Br>(seq.per_row<const float>(p, p.delta, head).from(row), 0.f)};
}

// The places where the threads of a tile exchange results: the parts of P and dS that each thread
// of a team has computed, and P, which one team of a pair hands to the other.
template <class Tiles>
struct Exchange {
  typename Tiles::ProbPool probs;
  typename Tiles::GradientPool gradients;
  typename Tiles::HandedProbs handed;
};

// P or dS: `tile` in fp32, in the place of S or dP, and `part`, this thread's part of it as a left
// operand. all() is the operand with the parts of the whole team.
template <class Tile, class Part, class Pool>
struct Weights {
  Tile& tile;
  Part part;
  Pool& pool;

  // Constructed in place where it is returned: on the CPU a copy would go through memory.
  template <class Finish>
  XF_INLINE Weights(Tile& tile, Pool& pool, Finish finish) : tile(tile), pool(pool) {
    narrow(part, tile);
    finish(part);
  }
  XF_INLINE decltype(auto) all() const { return pool.all(part); }
};
template <class Tile, class Part>
struct Weights<Tile, Part, Elsewhere> {  // not an operand of any product
  Tile& tile;
};

// Computes P and dS block by block, for the rows of a tile from `row` on. Origins and Deltas hold
// one value per query.
template <class Config, class Tiles, class Origins, class Deltas>
struct ScoreGradients {
  using Part = typename Tiles::PartTile;
  const ScoreChanges<Config, Tiles::kTransposed> changes;
  Origins origins;
  Deltas deltas;
  Exchange<Tiles>& exchange;
  const int row;

  XF_INLINE ScoreGradients(const BwdParams& p, const Sequence& seq, int head,
                           const typename Config::Mask& mask, const Origins& origins,
                           const Deltas& deltas, Exchange<Tiles>& exchange, int row)
      : changes(p, seq, head, mask),
        origins(origins),
        deltas(deltas),
        exchange(exchange),
        row(row) {}

  // Returns P, in the place of S. In fp32 it is multiplied by the slopes, for dS; as an operand it
  // is not.
  template <class Tile, class Blocks>
  XF_INLINE auto probabilities(Tile& S, const Blocks& at) {
    using Pool = typename Tiles::ProbPool;
    Tile slopes;
    changes.probabilities(S, slopes, at.is_full(), row, at.scored(), origins.at(at.scored()));
    if constexpr (std::is_same_v<Pool, Elsewhere>) {
      changes.times_slopes(S, slopes);
      return Weights<Tile, Part, Pool>{S};
    } else {
      return Weights<Tile, Part, Pool>(S, exchange.probs,
                                       [&](Part& part) __attribute__((always_inline)) {
                                         changes.drop(part, row, at.scored());
                                         exchange.probs.give(part);
                                         changes.times_slopes(S, slopes);
                                         exchange.handed.give(S);
                                       });
    }
  }
  template <class Blocks>
  XF_INLINE Elsewhere probabilities(Elsewhere&, const Blocks&) {
    return {};
  }
  // Returns P without the slopes: dS is then the gradient of the changed scores, not of the
  // products.
  template <class Tile, class Blocks>
  XF_INLINE Weights<Tile, Part, Elsewhere> changed_probabilities(Tile& S, const Blocks& at) const {
    Tile slopes;
    changes.probabilities(S, slopes, at.is_full(), row, at.scored(), origins.at(at.scored()));
    return {S};
  }

  // dS = P (dP - Delta), in the place of dP. The pair meets before P is taken, and the team meets
  // once each thread has given its part of dS.
  template <class Probs, class Tile, class Blocks>
  XF_INLINE auto gradients(const Probs& P, Tile& dP, const Blocks& at) {
    using Pool = typename Tiles::GradientPool;
    Group::meet_pair();
    changes.drop(dP, row, at.scored());
    weigh(dP, in_fp32(P), deltas.at(at.scored(), 0.f));
    if constexpr (std::is_same_v<Pool, Elsewhere>) {
      return Weights<Tile, Part, Pool>{dP};
    } else {
      return Weights<Tile, Part, Pool>(dP, exchange.gradients,
                                       [&](const Part& part) __attribute__((always_inline)) {
                                         exchange.gradients.give(part);
                                         Group::meet_team();
                                       });
    }
  }
  template <class Probs, class Blocks>
  XF_INLINE Elsewhere gradients(const Probs&, Elsewhere&, const Blocks&) {
    Group::meet_pair();
    Group::meet_team();
    return {};
  }

 private:
  template <class Probs>
  XF_INLINE const auto& in_fp32(const Probs& P) {
    return P.tile;
  }
  XF_INLINE auto in_fp32(Elsewhere) { return exchange.handed.take(); }
};

}  // namespace xeflash
