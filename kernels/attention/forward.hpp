// The vocabulary of flash_fwd: its tiles, its loop over the keys, its running softmax.
// Word: ProbsOf   the type of P, a left operand or another, for rows of V in some elements
// Word: OutputOf  the tile O, or its sums while such rows are added
#pragma once

#include "attention/cache.hpp"
#include "attention/partial.hpp"
#include "attention/scores.hpp"
#include "attention/softmax.hpp"

namespace xeflash {

// The tiles of a thread. It scores Bs of the Bc keys of a block, and owns dv columns of O.
template <class Config>
struct FwdTiles {
  static constexpr int Br = Config::block_rows, Bc = Config::block_columns, Bs = Bc / Group::team;
  static constexpr int d = Config::head_dim, dv = Config::block_v;
  using T = typename Config::Element;
  using E = Operand<T, typename Config::CacheElement>;
  using OwnRows = TileRows<Config::packs_heads, Br>;
  using ScoreTile = Tile<Br, Bs>;
  using ProbTile = ProbsOf<Left<E, Br, Bs, TeamPart>, typename Config::ValueElement>;
  using OutputTile = Tile<Br, dv>;
  using OutputSums = OutputOf<OutputTile, typename Config::ValueElement>;

  // In shared memory K comes first, then V, then Q, then the P that a team shares. The V of a team
  // is wide, and takes the place of K.
  using KeyTile = RightT<E, Bc, d, CacheBlock<Config, KeyRows<Config>>>;
  static constexpr int kValues = Group::one_place ? 0 : shared_bytes<KeyTile>();
  using ValueTile = Right<E, Bc, dv, CacheBlock<Config, ValueRows<Config>>, kValues>;
  static constexpr int kQuery =
      larger(shared_bytes<KeyTile>(), kValues + shared_bytes<ValueTile>());
  // The bytes that are in registers at the same time as Q. S is there twice: as it is, and relative
  // to m. So is P of a team where V is in 4 bits: as it is, and with the scales of a unit.
  using ValueElement = typename Config::ValueElement;
  static constexpr int kScaled =
      kNibbles<ValueElement> && Group::team > 1 ? Br * Bc * static_cast<int>(sizeof(E)) : 0;
  static constexpr int kBeside =
      sizeof(OutputOf<OutputTile, ValueElement>) + 2 * sizeof(ScoreTile) + kScaled;
  using QueryTile =
      Left<E, Br, d, Placed<typename OwnRows::template Matrix<const T>, kQuery, kBeside>>;
  static constexpr int kJoint = kQuery + shared_bytes<QueryTile>();
  using JointP = Joint<E, Br, Bc, kJoint>;
  static XF_INLINE void allocate() {
    allocate_shared<OutputTile, kJoint + shared_bytes<JointP>()>();
  }
};

// Returns the blocks of keys that the rows of a work-item see, or the share of a split of them.
// There is none beyond the last split.
template <class Config, class OwnRows>
XF_INLINE auto visible_blocks(const FwdParams& p, const typename Config::Mask& mask,
                              const OwnRows& rows, int split) {
  auto range = mask.template k_blocks<Config::block_columns>(rows.query(rows.first()),
                                                             rows.query(rows.last()));
  if constexpr (Config::splits_keys) range.keep_share(rows.has_none() ? p.splits : split, p.splits);
  return range;
}

// A thread's loop over the blocks of Bc keys that its rows see.
template <int Bc, class Blocks>
struct KeyBlocks {
  const Blocks& range;
  int index;
  XF_INLINE explicit KeyBlocks(const Blocks& range)
      : range(range), index(range.next(range.begin + Group::turn(), Group::turns)) {}
  XF_INLINE bool more() const { return index < range.end; }
  XF_INLINE void advance() { index = range.next(index + Group::turns, Group::turns); }
  // These return the first key of the block, of the keys that this thread scores, and of its next
  // block.
  XF_INLINE int first() const { return index * Bc; }
  XF_INLINE int scored() const { return first() + Group::member() * (Bc / Group::team); }
  XF_INLINE int next() const { return first() + Group::turns * Bc; }
};

// The rows of a cache in blocks of N, which become right operands.
template <class Operand, int N, class R>
struct BlocksOfCache {
  const R rows;
  XF_INLINE explicit BlocksOfCache(const R& rows) : rows(rows) {}
  XF_INLINE auto at(int first) const { return Operand(block_of<N>(rows, first)); }
};
// Blocks of plain rows share the messages that read them.
template <class Operand, int N, class T>
  requires(!Group::staged)
struct BlocksOfCache<Operand, N, Rows<T>> {
  const BlocksOf<Operand> blocks;
  XF_INLINE explicit BlocksOfCache(const Rows<T>& rows) : blocks(rows) {}
  XF_INLINE auto at(int first) const { return blocks.brought(first); }
};

// The keys and values that a thread's rows see. v_rows begins at the first column of the thread's
// team. v_blocks begins at the thread's own first column, unless the team stages blocks together.
template <class Config>
struct KeysAndValues {
  using Tiles = FwdTiles<Config>;
  static constexpr int Bc = Tiles::Bc;
  const KeyRows<Config> k_rows;
  const ValueRows<Config> v_rows;
  const BlocksOfCache<typename Tiles::KeyTile, Bc, KeyRows<Config>> k_blocks;
  const BlocksOfCache<typename Tiles::ValueTile, Bc, ValueRows<Config>> v_blocks;
  const bool looks_ahead;

  XF_INLINE KeysAndValues(const FwdParams& p, const Sequence& seq, int head,
                          const typename Config::Mask::Blocks& seen, int column)
      : k_rows(key_rows<Config>(p, seq, head, seen.first, seen.last)),
        v_rows(value_rows<Config>(p, seq, head, seen.first, seen.last)
                   .columns(column, Config::head_dim_v)),
        k_blocks(k_rows),
        v_blocks(value_rows<Config>(p, seq, head, seen.first, seen.last)
                     .columns(own_column(column), Config::head_dim_v)),
        looks_ahead(brings_ahead<Config, Tiles::d, Group::team * Tiles::dv>(p)) {}
  // Returns the first column that a thread computes. If there are too few columns for a thread, it
  // recomputes the first ones and stores nothing.
  static XF_INLINE int own_column(int column) {
    if constexpr (!Group::staged) column += Group::member() * Tiles::dv;
    return column < Config::head_dim_v ? column : 0;
  }
  XF_INLINE auto keys(int first) const { return k_blocks.at(first); }
  XF_INLINE auto values(int first) const { return v_blocks.at(first); }
  XF_INLINE void prefetch_block(int first) const {
    if (!looks_ahead) return;
    prefetch<Bc, Tiles::d>(block_of<Bc>(k_rows, first));
    prefetch<Bc, Group::team * Tiles::dv>(block_of<Bc>(v_rows, first));
  }
};

// The running maximum m and sum l of each row. In a team, each thread has a maximum of its own
// within a block of keys, and l of its own keys; the sums l are added up at the end.
template <class Config>
struct RunningSoftmax {
  using Tiles = FwdTiles<Config>;
  static constexpr int Br = Tiles::Br;
  const Exponents exponents;
  ColVec<Br> m{kNoScore};
  ColSum<Br> l{0.f};
  typename Tiles::JointP joint;

  XF_INLINE explicit RunningSoftmax(const FwdParams& p) : exponents(exponents_of<Config>(p)) {}

  // P = exp(S - m), l += rowsum P; first rescales O and l if m grows.
  template <class Probs, class Tile, class Output>
  XF_INLINE void step(Probs& P, Tile& S, Output& O) {
    online_softmax<Config::exp2_degree>(P, S, O, m, l, exponents);
  }
  // Returns P for all keys of a block: the parts of all threads of a team.
  template <class Probs, class Output>
  XF_INLINE decltype(auto) joined(const Probs& P, Output& O) {
    return joint.all(P, O, m, l, exponents.decays());
  }
  // Merges what the threads computed for different keys. Returns false for a thread whose O was
  // merged into another thread's.
  template <class Output>
  XF_INLINE bool finish(Output& O) {
    merge_turns(O, m, l, exponents.decays());
    joint.add_up(l);
    return Group::turn() == 0;
  }
  template <class OwnRows, class Output>
  XF_INLINE void store_partial(const FwdParams& p, const OwnRows& rows, int split, int column,
                               const Output& O) const {
    xeflash::store_partial<Config>(p, rows, split, column, O, m, ColVec<Br>(l));
  }
  // Returns a function that maps f over the RowState of each row, which includes the row's sink
  // and, with adds_up, the keys of other calls.
  template <class OwnRows>
  XF_INLINE auto states(const FwdParams& p, const OwnRows& rows) const {
    const bool has_sinks = p.sinks && !is_split<Config>(p);
    const ColVec<Br> sinks = has_sinks ? rows.sinks(p) : ColVec<Br>(0.f);
    ColVec<Br> others(0.f);
    if constexpr (Config::adds_up) others = load_values<Br>(rows.per_row(p, p.other_lse), -kInf);
    return [this, has_sinks, sum = ColVec<Br>(l), sinks, others](auto f) {
      const auto result = [&](auto m, auto l, auto sink, auto other) {
        RowState row(m, l, exponents);
        if (has_sinks) row.add_sink(sink);
        if constexpr (Config::adds_up) row.add_sink(other);
        return f(row);
      };
      return map(result, m, sum, sinks, others);
    };
  }
};

// Stores columns of the output; with adds_up, merges them into the output of other keys.
template <class Config, class OwnRows, class Output, class States>
XF_INLINE void store_output(const FwdParams& p, const OwnRows& rows, int column, Output& O,
                            const States& states) {
  using T = typename Config::Result;
  const auto columns = [&](const auto& m) { return m.columns(column, Config::head_dim_v); };
  if constexpr (Config::adds_up) {
    add(columns(rows.template of<T>(p.o)), O,
        states([](auto row) { return row.share_of_joined(); }));
  } else {
    store(columns(rows.template of<T>(p.o)), O);
    if (p.residual.data) {
      each(O, 0, 0, [](auto x, auto, auto) { return residual_of<T>(x); });
      store(columns(rows.template of<T>(p.residual)), O);
    }
  }
}

}  // namespace xeflash
