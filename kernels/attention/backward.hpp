// What the loops of the backward pass are written in: their tiles, and their way over the blocks of
// the other side.
#pragma once

#include "attention/mask.hpp"
#include "tile/elsewhere.hpp"

namespace xeflash {

// The columns of a matrix that a thread owns, `own` of them, or as a tile in shared memory its
// team. Where a narrow matrix leaves none for it, what it computes is not stored.
struct OwnColumns {
  int part, own, total;

  template <class Matrix>
  XF_INLINE Matrix right_of(const Matrix& m) const {
    const int first =
        (Group::staged ? part * Group::team : part * Group::team + Group::member()) * own;
    return m.columns(first < total ? first : 0, total);
  }
  // Multiplied by the factor, as the result, or added to what other keys or queries have given.
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

// What scores of a block of rows are made of: a thread has Bs of Bc keys. kAway: registers are for
// sums of scores.
template <class Config, bool kAway = false>
struct ScoreTiles {
  static constexpr bool kTransposed = false;
  static constexpr int Br = Config::block_rows, Bc = Config::block_columns, Bs = Bc / Group::team;
  static constexpr int d = Config::head_dim, dv = Config::head_dim_v;
  using T = typename Config::Element;
  using Matrix = Rows<const T>;
  using ScoreTile = Tile<Br, Bs>;
  using PartTile = PartOfLeft<T, Br, Bs>;

  using KeyTileT = RightT<T, Bc, d, Matrix>;
  static constexpr int kValues = shared_bytes<KeyTileT>();
  using ValueTileT = RightT<T, Bc, dv, Matrix, kValues>;
  static constexpr int kQuery = kValues + shared_bytes<ValueTileT>();
  template <int C, int Begin>
  using Placed = std::conditional_t<kAway && Group::staged, AwayLeft<Matrix, T, Br, C, Begin>,
                                    PlacedLeft<Matrix, T, Br, C, Begin>>;
  using QueryTile = Placed<d, kQuery>;
  static constexpr int kOutput = kQuery + shared_bytes<QueryTile>();
  using OutputGradient = Placed<dv, kOutput>;
  static constexpr int kEnd = kOutput + shared_bytes<OutputGradient>();
  using KeyTile = Elsewhere;
  using ProbPool = Elsewhere;  // no product takes P, or dS
  using GradientPool = Elsewhere;
  using HandedProbs = Elsewhere;
  static constexpr int kBytes = kEnd;
  static XF_INLINE void allocate() { allocate_shared<void, kBytes>(); }
};

// Those of dQ, of which a thread owns some columns.
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

// What a thread makes of dK and dV: all, or as one of a pair P and dV, and as the other dS and dK,
// so that each keeps one operand and one sum in registers.
enum class Makes { all, values, keys };

// Those of a block of keys, which are the rows of all tiles here: S, P, dP and dS are transposed. A
// thread scores Bs of Br queries, and owns some columns of dK and of dV.
template <class Config, Makes kMakes = Makes::all>
struct DkvTiles {
  static constexpr bool kTransposed = true;
  static constexpr bool kOfValues = kMakes != Makes::keys, kOfKeys = kMakes != Makes::values;
  static constexpr int Bc = Config::block_rows, Br = Config::block_columns, Bs = Br / Group::team;
  static constexpr int d = Config::head_dim, dv = Config::head_dim_v;
  static constexpr int own_k = Config::block_d, own_v = Config::block_v;
  using T = typename Config::Element;
  using Matrix = Rows<const T>;
  using PartTile = PartOfLeft<T, Bc, Bs>;
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
  using PlacedKeys = LeftBeside<ValueSum, Matrix, T, Bc, d, kKey>;
  static constexpr int kValue = kKey + shared_bytes<PlacedKeys>();
  using PlacedValues = LeftBeside<KeySum, Matrix, T, Bc, dv, kValue>;
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

// Rows of a matrix as the right operand of both products: of mma_ABt, and some of their columns of
// mma_AB.
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
  // Brings in a block with the group, and asks for the next one.
  XF_INLINE void bring(int first) {
    next_q.fetch(first + kRows);
    next_dO.fetch(first + kRows);
    Group::meet_staged();
    q_t.bring(first);
    dO_t.bring(first);
    dO.bring(first);
    q.bring(first);
    Group::meet_staged();
  }
};

// The keys and values that a head's queries see, in blocks of Bc.
template <class Tiles>
struct BlocksOfKeys {
  static constexpr int kRows = Tiles::Bc;
  // Of wide heads IGC moves so many loads up in a loop without a branch that registers are spilt.
  static constexpr bool kOnce = Group::staged || (Group::in_step && Tiles::d > 128);
  using Matrix = typename Tiles::Matrix;
  using KeyTile = typename Tiles::KeyTile;
  using Columns =
      std::conditional_t<std::is_same_v<KeyTile, Elsewhere>, BlocksElsewhere, BlocksOf<KeyTile>>;
  const BlocksOf<typename Tiles::KeyTileT> k_t;
  const BlocksOf<typename Tiles::ValueTileT> v_t;
  const Columns k;
  Ahead<kRows, Tiles::d, Matrix> next_k;
  Ahead<kRows, Tiles::dv, Matrix> next_v;

  XF_INLINE BlocksOfKeys(const Matrix& k_rows, const Matrix& v_rows, const OwnColumns& of_q)
      : k_t(k_rows), v_t(v_rows), k(of_q.right_of(k_rows)), next_k(k_rows), next_v(v_rows) {}
  XF_INLINE auto keys(int first) const { return both_ways(k_t, k, first); }
  XF_INLINE auto values(int first) const { return v_t.brought(first); }
  XF_INLINE void bring(int first) {
    next_k.fetch(first + kRows);
    next_v.fetch(first + kRows);
    Group::meet_staged();
    k_t.bring(first);
    v_t.bring(first);
    k.bring(first);
    Group::meet_staged();
  }
};

// A thread's way over those blocks of the other side that its own rows see. A group that meets at
// each block comes to all that one of its threads sees: to those of others a thread only helps,
// before its own and after them, so that the loop over its own has no branch; or between them
// (kOnce), where blocks are staged by long code.
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
  XF_INLINE bool more() {
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
