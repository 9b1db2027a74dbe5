// The vocabulary of the backward pass: the tiles of its kernels, and the loop over blocks of the
// other side: keys where a thread owns queries, queries where it owns keys.
#pragma once

#include "attention/mask.hpp"
#include "tile/elsewhere.hpp"

namespace xeflash {

// The columns of a matrix that a thread owns, `own` of them. Where the matrix is narrow, a thread
// may own none; it then computes the first ones, and does not store them.
struct OwnColumns {
  int part, own, total;

  // Returns the matrix from the thread's columns on, or from its team's columns on if operands are
  // in shared memory.
  template <class Matrix>
  XF_INLINE Matrix right_of(const Matrix& m) const {
    const int first =
        (Group::staged ? part * Group::team : part * Group::team + Group::member()) * own;
    return m.columns(first < total ? first : 0, total);
  }
  // Stores t times the factor as the result, or adds it to the sum over other keys or queries.
  template <class Config, class Matrix, int R, int C>
  XF_INLINE void store_in(const Matrix& m, Tile<R, C>& t, float factor) const {
    const int first = (part * Group::team + Group::member()) * own;
    t *= ColVec<R>(factor);
    if (first >= total) return;
    if constexpr (Config::adds_up) {
      add(m.columns(first, total), t, ColVec<R>(1.f));
    } else {
      store(m.columns(first, total), t);
    }
  }
  template <class Config, class Matrix>
  XF_INLINE void store_in(const Matrix&, const Elsewhere&, float) const {}
};

// ---- tiles --------------------------------------------------------------------------------------

// The tiles of a kernel that computes P and dS for blocks of Br queries: each thread of a team
// takes Bs of the Bc keys of a block. kAway keeps Q and dO of a staged group out of registers, to
// make room for sums over scores.
template <class Config, bool kAway = false>
struct ScoreTiles {
  static constexpr bool kTransposed = false;
  static constexpr int Br = Config::block_rows, Bc = Config::block_columns, Bs = Bc / Group::team;
  static constexpr int d = Config::head_dim, dv = Config::head_dim_v;
  using T = typename Config::Element;
  using Matrix = Rows<const T>;
  using ScoreTile = Tile<Br, Bs>;
  using PartTile = Left<T, Br, Bs, TeamPart>;

  using KeyTileT = RightT<T, Bc, d, Matrix>;
  static constexpr int kValues = shared_bytes<KeyTileT>();
  using ValueTileT = RightT<T, Bc, dv, Matrix, kValues>;
  static constexpr int kQuery = kValues + shared_bytes<ValueTileT>();
  static constexpr int kBeside = kAway && Group::staged ? kNoRoom : 0;
  using QueryTile = Left<T, Br, d, Placed<Matrix, kQuery, kBeside>>;
  static constexpr int kOutput = kQuery + shared_bytes<QueryTile>();
  using OutputGradient = Left<T, Br, dv, Placed<Matrix, kOutput, kBeside>>;
  static constexpr int kEnd = kOutput + shared_bytes<OutputGradient>();
  using KeyTile = Elsewhere;
  using ProbPool = Elsewhere;  // neither P nor dS is an operand of a product
  using GradientPool = Elsewhere;
  using HandedProbs = Elsewhere;
  static constexpr int kBytes = kEnd;
  static XF_INLINE void allocate() { allocate_shared<void, kBytes>(); }
};

// The tiles of flash_bwd_dq. Each thread owns `own` columns of dQ.
template <class Config>
struct DqTiles : ScoreTiles<Config> {
  using Scores = ScoreTiles<Config>;
  using Scores::Bc, Scores::Br;
  using typename Scores::Matrix, typename Scores::T;
  static constexpr int own = Config::block_d;
  using QueryGradient = Tile<Br, own>;

  using KeyTile = Right<T, Bc, own, Matrix, Scores::kEnd>;
  static constexpr int kPool = Scores::kEnd + shared_bytes<KeyTile>();
  using GradientPool = Pooled<T, Br, Bc, kPool>;
  static constexpr int kBytes = kPool + shared_bytes<GradientPool>();
  static XF_INLINE void allocate() { allocate_shared<void, kBytes>(); }
};

// The gradients that a thread computes: both, or in a pair of teams P and dV in one team, and dS
// and dK in the other, so that each thread keeps one operand and one sum in registers.
enum class Makes { all, values, keys };

// The tiles of flash_bwd_dkv. Their rows are keys: S, P, dP and dS are transposed. Each thread of a
// team scores Bs of the Br queries of a block, and owns some columns of dK and of dV.
template <class Config, Makes kMakes = Makes::all>
struct DkvTiles {
  static constexpr bool kTransposed = true;
  static constexpr bool kOfValues = kMakes != Makes::keys, kOfKeys = kMakes != Makes::values;
  static constexpr int Bc = Config::block_rows, Br = Config::block_columns, Bs = Br / Group::team;
  static constexpr int d = Config::head_dim, dv = Config::head_dim_v;
  static constexpr int own_k = Config::block_d, own_v = Config::block_v;
  using T = typename Config::Element;
  using Matrix = Rows<const T>;
  using PartTile = Left<T, Bc, Bs, TeamPart>;
  using KeySum = Tile<Bc, own_k>;
  using ValueSum = Tile<Bc, own_v>;

  using QueryTileT = RightT<T, Br, d, Matrix>;
  static constexpr int kGradientT = shared_bytes<QueryTileT>();
  using GradientTileT = RightT<T, Br, dv, Matrix, kGradientT>;
  static constexpr int kGradient = kGradientT + shared_bytes<GradientTileT>();
  using GradientTile = Right<T, Br, own_v, Matrix, kGradient>;
  static constexpr int kQuery = kGradient + shared_bytes<GradientTile>();
  using QueryTile = Right<T, Br, own_k, Matrix, kQuery>;
  static constexpr int kKey = kQuery + shared_bytes<QueryTile>();
  using PlacedKeys = Left<T, Bc, d, Placed<Matrix, kKey, 0, sizeof(ValueSum)>>;
  static constexpr int kValue = kKey + shared_bytes<PlacedKeys>();
  using PlacedValues = Left<T, Bc, dv, Placed<Matrix, kValue, 0, sizeof(KeySum)>>;
  static constexpr int kProbs = kValue + shared_bytes<PlacedValues>();
  using ProbPool = Pooled<T, Bc, Br, kProbs>;
  static constexpr int kScores = kProbs + shared_bytes<ProbPool>();
  using GradientPool = Pooled<T, Bc, Br, kScores>;
  static constexpr int kHanded = kScores + shared_bytes<GradientPool>();
  using HandedProbs = Handed<Bc, Bs, kHanded>;
  static constexpr int kBytes = kHanded + shared_bytes<HandedProbs>();
  static XF_INLINE void allocate() { allocate_shared<void, kBytes>(); }

  using KeyTile = Here<kOfValues, PlacedKeys>;
  using ValueTile = Here<kOfKeys, PlacedValues>;
  using ScoreTile = Here<kOfValues, Tile<Bc, Bs>>;
  using ProbGradient = Here<kOfKeys, Tile<Bc, Bs>>;
  using KeyGradient = Here<kOfKeys, KeySum>;
  using ValueGradient = Here<kOfValues, ValueSum>;
};

// ---- the other side -----------------------------------------------------------------------------

// A block of rows as a right operand of both products: all its columns for mma_ABt, and those that
// a thread owns for mma_AB.
template <class Transposed, class Columns>
struct BothWays {
  Transposed transposed;
  Columns columns;
};
template <int R, int C, class Left, class... Both>
XF_INLINE void mma_ABt(Tile<R, C>& S, const Left& A, const BothWays<Both...>& B) {
  mma_ABt(S, A, B.transposed);
}
template <int R, int C, class Left, class... Both>
XF_INLINE void mma_AB(Tile<R, C>& O, const Left& A, const BothWays<Both...>& B) {
  mma_AB(O, A, B.columns);
}
template <class Transposed, class Columns>
XF_INLINE auto both_ways(const Transposed& transposed, const Columns& columns, int first) {
  return BothWays<decltype(transposed.brought(first)), decltype(columns.brought(first))>{
      transposed.brought(first), columns.brought(first)};
}

// Brings in the blocks that begin at a row, together with the group.
template <class... Blocks>
XF_INLINE void bring_together(int first, const Blocks&... blocks) {
  Group::meet_staged();
  (blocks.bring(first), ...);
  Group::meet_staged();
}

// The queries of a head and the gradients of their outputs, in blocks of Br.
template <class Tiles>
struct QueriesAndGradients {
  static constexpr int kRows = Tiles::Br;
  static constexpr bool kOnce = Group::staged;
  using Matrix = typename Tiles::Matrix;
  const BlocksOf<typename Tiles::QueryTileT> q_t;
  const BlocksOf<typename Tiles::GradientTileT> dO_t;
  const BlocksOf<typename Tiles::QueryTile> q;
  const BlocksOf<typename Tiles::GradientTile> dO;
  Ahead<kRows, Tiles::d, Matrix> next_q;
  Ahead<kRows, Tiles::dv, Matrix> next_dO;

  XF_INLINE QueriesAndGradients(const Matrix& q_rows, const Matrix& dO_rows, const OwnColumns& of_k,
                                const OwnColumns& of_v)
      : q_t(q_rows),
        dO_t(dO_rows),
        q(of_k.right_of(q_rows)),
        dO(of_v.right_of(dO_rows)),
        next_q(q_rows),
        next_dO(dO_rows) {}
  XF_INLINE auto queries(int first) const { return both_ways(q_t, q, first); }
  XF_INLINE auto gradients(int first) const { return both_ways(dO_t, dO, first); }
  // Brings in a block together with the group, and prefetches the next one.
  XF_INLINE void bring(int first) {
    next_q.fetch(first + kRows);
    next_dO.fetch(first + kRows);
    bring_together(first, q_t, dO_t, dO, q);
  }
};

// The keys and values of a head, in blocks of Bc.
template <class Tiles>
struct BlocksOfKeys {
  static constexpr int kRows = Tiles::Bc;
  // For wide heads a branch in the loop is wanted: without one, IGC hoists so many loads that
  // registers spill.
  static constexpr bool kOnce = Group::staged || (Group::team > 1 && Tiles::d > 128);
  using Matrix = typename Tiles::Matrix;
  using KeyTile = typename Tiles::KeyTile;
  using Columns =
      std::conditional_t<std::is_same_v<KeyTile, Elsewhere>, BlocksElsewhere, BlocksOf<KeyTile>>;
  const BlocksOf<typename Tiles::KeyTileT> k_t;
  const BlocksOf<typename Tiles::ValueTileT> v_t;
  const Columns k;
  Ahead<kRows, Tiles::d, Matrix> next_k;
  Ahead<kRows, Tiles::dv, Matrix> next_v;

  // of_q: the columns of K that a product takes, if the tiles have such a product.
  XF_INLINE BlocksOfKeys(const Matrix& k_rows, const Matrix& v_rows,
                         const OwnColumns& of_q = {0, Tiles::d, Tiles::d})
      : k_t(k_rows), v_t(v_rows), k(of_q.right_of(k_rows)), next_k(k_rows), next_v(v_rows) {}
  XF_INLINE auto keys(int first) const { return both_ways(k_t, k, first); }
  XF_INLINE auto values(int first) const { return v_t.brought(first); }
  XF_INLINE void bring(int first) {
    next_k.fetch(first + kRows);
    next_v.fetch(first + kRows);
    bring_together(first, k_t, v_t, k);
  }
};

// A thread's loop over the blocks of the other side that its own rows see. A group whose threads
// meet at each block visits every block that any of its threads sees (`all`): for blocks outside
// `own` a thread only helps to bring them in. It does so before and after its own blocks, so that
// the loop over those has no branch; or, with kOnce, in the same loop, so that the long code that
// stages a block exists once.
template <class Others, class Blocks>
struct OwnBlocks {
  static constexpr int N = Others::kRows, Bs = N / Group::team;
  Others& others;
  const Blocks all, own;
  const int own_end;
  int index;

  XF_INLINE OwnBlocks(Others& others, const Blocks& all, const Blocks& own)
      : others(others),
        all(all),
        own(own),
        own_end(at_most(own.end, all.end)),
        index(all.next(all.begin, 1)) {
    if constexpr (!Others::kOnce) help_up_to(own.begin);
  }
  // Brings in the next of the thread's own blocks, and the blocks before it that other threads
  // need. Returns false if there is none left.
  XF_INLINE bool bring() {
    if constexpr (Others::kOnce) {
      for (; index < all.end; advance()) {
        others.bring(first());
        if (own.has(index)) return true;
        Group::meet_pair();
        Group::meet_team();
      }
      return false;
    } else {
      if (index >= own_end) {
        help_up_to(all.end);
        return false;
      }
      others.bring(first());
      return true;
    }
  }
  XF_INLINE void advance() { index = all.next(index + 1, 1); }
  XF_INLINE int first() const { return index * N; }
  XF_INLINE int scored() const { return first() + Group::member() * Bs; }
  XF_INLINE bool is_full() const { return own.is_full(index); }

 private:
  XF_INLINE void help_up_to(int block) {
    if constexpr (Group::in_step) {
      for (; index < at_most(block, all.end); advance()) {
        others.bring(first());
        Group::meet_pair();
        Group::meet_team();
      }
    }
  }
};

}  // namespace xeflash
