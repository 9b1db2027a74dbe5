// Checks that a backend has all that the kernels require: the words of tile.hpp, one by one. A
// backend that lacks a word, or whose word cannot be called as the kernels call it, does not
// compile with this header, and the error names the word. The kernels themselves do not include it.
#pragma once

#include <concepts>

#include "tile/tile.hpp"

namespace xeflash::contract {

// Words are found by argument-dependent lookup in the namespace of the backend's types, so that a
// missing word makes a concept false, instead of an error by itself. X is the type of the first
// argument.
#define XF_CALL(word, Argument, ...)                     \
  template <class X>                                     \
  concept calls_##word = requires(X x) { __VA_ARGS__; }; \
  static_assert(calls_##word<Argument>, "a backend needs " #word ": " #__VA_ARGS__)
#define XF_TYPE(word, ...)                     \
  template <class X>                           \
  concept is_##word = requires { sizeof(X); }; \
  static_assert(is_##word<__VA_ARGS__>, "a backend needs " #word)

template <class T>
T& some();

constexpr int R = 16, N = 32, D = 64;  // rows of a tile, rows of the other side, head dim
using T = bf16;
using Matrix = Rows<const T>;
using Score = Tile<R, N>;
using Output = Tile<R, D>;
using Rowwise = ColVec<R>;
using Columnwise = Across<N>;
using Probs = Left<T, R, N, TeamPart>;

// ---- tiles --------------------------------------------------------------------------------------

XF_TYPE(Tile, Tile<R, N>);
XF_TYPE(ColVec, ColVec<R>);
XF_TYPE(ColSum, ColSum<R>);
XF_TYPE(Across, Across<N>);
XF_TYPE(Left, Left<T, R, N>);
XF_TYPE(Left_placed, Left<T, R, D, Placed<Matrix, 0>>);
XF_TYPE(Left_away, Left<T, R, D, Placed<Matrix, 0, kNoRoom>>);
XF_TYPE(Left_beside_sums, Left<T, R, D, Placed<Matrix, 0, 0, sizeof(Output)>>);
XF_TYPE(Left_part, Left<T, R, N, TeamPart>);
XF_TYPE(RightT, RightT<T, N, D, Matrix>);
XF_TYPE(Right, Right<T, N, D, Matrix>);
XF_TYPE(Operand, Operand<T, T>);
XF_TYPE(OutputOf, OutputOf<Output, T>);
XF_TYPE(ProbsOf, ProbsOf<Left<T, R, N, TeamPart>, T>);
XF_CALL(settled, Output, {settled(x)}->std::same_as<Output&>);

using Query = Left<T, R, D, Placed<Matrix, 0>>;
using Key = RightT<T, N, D, Matrix>;
using Value = Right<T, N, D, Matrix>;

XF_CALL(load, Query, load(x, some<Matrix>()));
XF_CALL(store, Output, store(some<Rows<T>>(), x));
XF_CALL(store_values, Rowwise, store(some<Rows<float>>(), x));
XF_CALL(add, Output, add(some<Rows<float>>(), x, some<Rowwise>()));
XF_CALL(prefetch, const Matrix, prefetch<N, D>(x));
static_assert(std::same_as<decltype(load_values<R>(some<Rows<const float>>(), 0.f)), ColVec<R>>);

using KeyBlocks = BlocksOf<Key>;
using ValueBlocks = BlocksOf<Value>;
XF_CALL(BlocksOf, const KeyBlocks, X(some<const Matrix>()), x.bring(0), x.brought(0));
XF_CALL(BlocksOf_values, const ValueBlocks, X(some<const Matrix>()), x.bring(0), x.brought(0));
static_assert(requires(AcrossRows<N> values) {
  { values.at(0, 0.f) } -> std::same_as<Across<N>>;
});
static_assert(requires(Ahead<N, D, Matrix> next) { next.fetch(0); });

// ---- products -----------------------------------------------------------------------------------

constexpr auto unchanged = [](auto s, auto, auto) { return s; };
constexpr auto itself = [](auto v) { return v; };

XF_CALL(fill, Score, fill(x, 0.f));
XF_CALL(mma_ABt, Score, mma_ABt(x, some<const Query>(), some<const Key>()));
XF_CALL(mma_AB, Output, mma_AB(x, some<const Left<T, R, N>>(), some<const Value>()));
using Seen = decltype(columns_seen<R>(0, [](int) { return 0; }));
XF_CALL(mma_ABt_of_seen, Score,
        mma_ABt(x, some<const Query>(), some<const Key>(), some<const Seen>()));
XF_CALL(mma_AB_of_seen, Output,
        mma_AB(x, some<const Left<T, R, N>>(), some<const Value>(), some<const Seen>()));
XF_CALL(each, Score, each(x, 0, 0, unchanged));
XF_CALL(each_by_numbers, Score, each(x, Numbers<R>(itself), Numbers<N>(itself), unchanged));
XF_CALL(each_of_numbers, Score, each(x, some<Numbers<R>>(), some<Numbers<N>>(), unchanged));
XF_CALL(each_at_numbers, Score,
        each(x, Numbers<R>(itself), Numbers<N>(itself), 0, 0,
             [](auto s, auto, auto, auto, auto) { return s; }));
XF_CALL(map, const Rowwise, {map(itself, x)}->std::same_as<Rowwise>);
XF_CALL(log_probs, const Score, log_probs(x, 1.f, some<const Rowwise>()));
using LogScores = decltype(log_probs(some<const Score>(), 1.f, some<const Rowwise>()));
XF_CALL(any_above, const LogScores, {any_above(x, 1.f)}->std::same_as<bool>);
XF_CALL(any_beyond, const Rowwise, {any_beyond(x, 1.f)}->std::same_as<bool>);
XF_CALL(max_of_rows, const Rowwise, {max(x, x)}->std::same_as<Rowwise>);
XF_CALL(row_max, const Score, max(some<const Rowwise>(), row_max(x)));
XF_CALL(add_row_sums, ColSum<R>, add_row_sums(x, some<const Score>()));
XF_CALL(column_sums, const Score, {column_sums(x)}->std::same_as<Columnwise>);
XF_CALL(exp2_minus, Score, exp2_minus<6>(x, 1.f, some<const Rowwise>()));
XF_CALL(exp2_minus_of_columns, Score, exp2_minus<6>(x, 1.f, some<const Columnwise>()));
XF_CALL(exp2_and_sum, Probs, exp2_and_sum<6>(x, some<const LogScores>(), some<ColSum<R>>()));
static_assert(kExp2Headroom >= 0);
XF_CALL(lower, Score, lower(x, some<const Rowwise>()));
XF_CALL(lower_columns, Score, lower(x, some<const Columnwise>()));
XF_CALL(weigh, Score, weigh(x, x, some<const Rowwise>()));
XF_CALL(weigh_by_columns, Score, weigh(x, x, some<const Columnwise>()));
XF_CALL(narrow, Probs, narrow(x, some<const Score>()));
struct Drawing {
  uint32_t below;
  template <class U>
  void draw(U, U, U (&)[4]) const;
};
XF_CALL(drop_tile, Score, drop_tile<false>(x, 0, 0, some<const Drawing>()));
XF_CALL(drop_tile_of_columns, Score, drop_tile<true>(x, 0, 0, some<const Drawing>()));
XF_CALL(drop_tile_of_left, Probs, drop_tile<false>(x, 0, 0, some<const Drawing>()));
static_assert(requires(Output O, Rowwise factors) { O *= factors; });
static_assert(std::same_as<decltype(row_dots<R, D>(some<Matrix>(), some<Matrix>())), ColVec<R>>);

// ---- groups -------------------------------------------------------------------------------------

template <class G>
concept GroupOfThreads = requires {
  requires G::turns > 0 && G::team > 0 && G::roles > 0 && G::tiles > 0 && G::ahead_bytes > 0;
  { G::staged || G::in_step || G::in_parts || G::one_place } -> std::same_as<bool>;
  { G::index() } -> std::same_as<typename G::Index>;
  { G::turn() } -> std::same_as<int>;
  { G::member() } -> std::same_as<int>;
  { G::role() } -> std::same_as<int>;
  { G::tile() } -> std::same_as<int>;
  G::meet_team();
  G::meet_pair();
  G::meet_staged();
};
static_assert(GroupOfThreads<Group>);

constexpr int kTeamKeys = N / Group::team;
using Part = Left<T, R, kTeamKeys, TeamPart>;
using Pool = Pooled<T, R, N, 0>;
using Handing = Handed<R, N, 0>;
XF_CALL(Pooled, Pool, x.give(some<const Part>()), x.all(some<const Part>()));
XF_CALL(Handed, Handing, x.give(some<const Score>()));
using Parts = Joint<T, R, N, 0>;
constexpr auto decays = [](auto from, auto) { return from; };
XF_CALL(Joint, Parts, x.add_up(some<ColSum<R>>()),
        x.all(some<const Part>(), some<Output>(), some<Rowwise>(), some<ColSum<R>>(), decays));
XF_CALL(merge_turns, Output, merge_turns(x, some<Rowwise>(), some<ColSum<R>>(), decays));
static_assert(shared_bytes<Key>() >= 0);
static_assert(requires { allocate_shared<Output, shared_bytes<Key>()>(); });

// ---- few rows -----------------------------------------------------------------------------------

using Heads = RowTile<8, N>;
using HeadOutput = RowOutput<T, 8, D, T>;
using HeadQuery = RowLeft<T, 8, D, N, T>;
using HeadProbs = RowProbs<T, 8, N, T>;

XF_CALL(dot_rows, Heads, dot_rows(x, some<HeadQuery>(), some<const Matrix>()));
XF_CALL(accumulate_rows, HeadOutput,
        accumulate_rows(x, some<const HeadProbs>(), some<const Matrix>()));
static_assert(requires { each_row<8>(itself); });
XF_CALL(each_in_row, Heads, each_in_row(x, 0, 0, [](auto s, auto) { return s; }));
XF_CALL(store_row, const HeadOutput, store_row(some<Rows<T>>(), x, 0, 1.f));
XF_CALL(prefetch_rows, const Matrix, prefetch_rows<N, D>(x));
XF_CALL(row_max_of_heads, const Heads, max(some<const RowVec<8>>(), row_max(x)));
XF_CALL(log_probs_of_heads, const Heads,
        any_above(log_probs(x, 1.f, some<const RowVec<8>>()), 1.f));
XF_CALL(RowVec, RowSum<8>, RowVec<8>(x));
XF_CALL(merge_turns_of_heads, HeadOutput,
        merge_turns(x, some<RowVec<8>>(), some<RowSum<8>>(), decays));

using OneRow = RowTile<1, D>;
XF_CALL(load_row, OneRow, load_row(x, some<const float*>(), 1));
XF_CALL(load_of_row, OneRow, load(x, some<const Matrix>()));
XF_CALL(abs_max, const OneRow, {abs_max(x)}->std::same_as<float>);
XF_CALL(store_nibbles, const OneRow, store_nibbles(some<nibbles*>(), some<f16*>(), x));
XF_CALL(rotate, OneRow, rotate(x, some<const T*>(), some<const T*>(), some<const T*>(), D, false));
XF_CALL(add_scaled, OneRow, add_scaled(x, some<const T*>(), 1.f));

// ---- numbers ------------------------------------------------------------------------------------

// A word for a single lane and for a vector of lanes.
#define XF_NUMBER(word, ...)                                \
  XF_CALL(word, Floats, {X(__VA_ARGS__)}->std::same_as<X>); \
  XF_CALL(word##_of_one, float, {X(__VA_ARGS__)}->std::same_as<X>)
XF_NUMBER(exp2, exp2(x));
XF_NUMBER(log2, log2(x));
XF_NUMBER(magnitude, magnitude(x));
XF_NUMBER(divide, divide(x, x));
XF_NUMBER(max, max(x, x));
XF_NUMBER(select, select(x < x, x, x));
XF_CALL(sqrt, Floats, {Floats(sqrt(x))});
XF_CALL(tanh, Floats, {Floats(tanh(x))});
XF_CALL(floor, Floats, {Floats(floor(x))});
XF_CALL(fma, Floats, {Floats(fma(x, x, x))});
XF_CALL(log2_of_any, Floats, {Floats(log2_of_any(x))});
XF_CALL(rounded, Floats, {Floats(rounded<T>(x))});
XF_CALL(at_most, Ints, {Ints(at_most(x, 3))});
XF_CALL(to_ints, Bools, {Ints(to_ints(x))});
XF_CALL(to_ints_of_floats, Floats, {Ints(to_ints(x))});
XF_CALL(to_bools, bool, {Bools(to_bools(x))});
XF_CALL(to_floats, Ints, {Floats(to_floats(x))});
XF_CALL(to_floats_of_one, int, {to_floats(x)}->std::same_as<float>);
XF_CALL(bits_of, Bools, {bits_of(x)}->std::same_as<uint32_t>);
XF_CALL(lowest_of, Ints, {lowest_of(x)}->std::same_as<int>);
XF_CALL(value_at, Ints, {Floats(value_at(some<const float*>(), x))});
XF_CALL(value_at_rows, Ints, {Floats(value_at(some<const float*>(), 1, x, 1, 0))});
XF_CALL(value_at_columns, Ints, {Floats(value_at(some<const float*>(), 1, 0, 1, x))});
static_assert(requires { Ints(lane_index() + kLanes); });

XF_CALL(add_at, float, add_at(&x, some<Ints>(), some<Floats>()));

}  // namespace xeflash::contract
