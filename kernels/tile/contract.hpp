// What the kernels require of a backend: the words of tile.hpp, checked one by one. A backend that
// lacks a word, or whose word cannot be called as the kernels call it, does not compile with this
// header, and the error names the word. The kernels themselves do not include it.
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
using Probs = PartOfLeft<T, R, N>;

// ---- tiles --------------------------------------------------------------------------------------

XF_TYPE(Tile, Tile<R, N>);
XF_TYPE(ColVec, ColVec<R>);
XF_TYPE(ColSum, ColSum<R>);
XF_TYPE(Across, Across<N>);
XF_TYPE(Left, Left<T, R, N>);
XF_TYPE(PlacedLeft, PlacedLeft<Matrix, T, R, D, 0>);
XF_TYPE(AwayLeft, AwayLeft<Matrix, T, R, D, 0>);
XF_TYPE(LeftBeside, LeftBeside<Output, Matrix, T, R, D, 0>);
XF_TYPE(PartOfLeft, PartOfLeft<T, R, N>);
XF_TYPE(RightT, RightT<T, N, D, Matrix>);
XF_TYPE(Right, Right<T, N, D, Matrix>);
XF_TYPE(Operand, Operand<T, T>);

using Query = PlacedLeft<Matrix, T, R, D, 0>;
using Key = RightT<T, N, D, Matrix>;
using Value = Right<T, N, D, Matrix>;

XF_CALL(load, Query, load(x, some<Matrix>()));
XF_CALL(store, Output, store(some<Rows<T>>(), x));
XF_CALL(store_values, Rowwise, store(some<Rows<float>>(), x));
XF_CALL(add, Output, add(some<Rows<float>>(), x, some<Rowwise>()));
XF_CALL(prefetch, const Matrix, prefetch<N, D>(x));
static_assert(std::same_as<decltype(load_values<R>(some<Rows<const float>>(), 0.f)), ColVec<R>>);

template <class Blocks>
concept BringsBlocks = requires(Blocks blocks, const Matrix& matrix, int row) {
  Blocks(matrix);
  blocks.bring(row);
  blocks.brought(row);
};
static_assert(BringsBlocks<BlocksOf<Key>> && BringsBlocks<BlocksOf<Value>>);
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
XF_CALL(each, Score, each(x, 0, 0, unchanged));
XF_CALL(each_by_numbers, Score, each(x, Numbers<R>(itself), Numbers<N>(itself), unchanged));
XF_CALL(each_of_numbers, Score, each(x, some<Numbers<R>>(), some<Numbers<N>>(), unchanged));
XF_CALL(map, const Rowwise, {map(itself, x)}->std::same_as<Rowwise>);
XF_CALL(log_probs, const Score, log_probs(x, 1.f, some<const Rowwise>()));
using LogScores = decltype(log_probs(some<const Score>(), 1.f, some<const Rowwise>()));
XF_CALL(any_above, const LogScores, {any_above(x, 1.f)}->std::same_as<bool>);
XF_CALL(any_beyond, const Rowwise, {any_beyond(x, 1.f)}->std::same_as<bool>);
XF_CALL(max, const Rowwise, {max(x, x)}->std::same_as<Rowwise>);
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
XF_CALL(scaled_by, Output, x *= some<const Rowwise>());
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
using Part = PartOfLeft<T, R, kTeamKeys>;
using Pool = Pooled<T, R, N, 0>;
using Handing = Handed<R, N, 0>;
XF_CALL(Pooled, Pool, x.give(some<const Part>()), x.all(some<const Part>()));
XF_CALL(Handed, Handing, x.give(some<const Score>()));
XF_TYPE(Joint, Joint<T, R, N, 0>);
static_assert(shared_bytes<Key>() >= 0);

// ---- few rows -----------------------------------------------------------------------------------

using Heads = RowTile<8, N>;
using HeadOutput = RowTile<8, D>;
using HeadQuery = RowLeft<T, 8, D, N, T>;
using HeadProbs = RowProbs<T, 8, N>;

XF_CALL(dot_rows, Heads, dot_rows(x, some<HeadQuery>(), some<const Matrix>()));
XF_CALL(accumulate_rows, HeadOutput,
        accumulate_rows(x, some<const HeadProbs>(), some<const Matrix>()));
XF_CALL(each_in_row, Heads, each_in_row(x, 0, 0, [](auto s, auto) { return s; }));
XF_CALL(hide_columns, Heads, hide_columns(x, 0, 1));
XF_CALL(store_row, const HeadOutput, store_row(some<Rows<T>>(), x, 0, 1.f));
XF_CALL(prefetch_rows, const Matrix, prefetch_rows<N, D>(x));
XF_CALL(row_max_of_heads, const Heads, max(some<const RowVec<8>>(), row_max(x)));
XF_CALL(log_probs_of_heads, const Heads,
        any_above(log_probs(x, 1.f, some<const RowVec<8>>()), 1.f));
XF_CALL(sum_of_heads, RowSum<8>, RowVec<8>(x));

using OneRow = RowTile<1, D>;
XF_CALL(load_row, OneRow, load_row(x, some<const T*>()));
XF_CALL(abs_max, const OneRow, {abs_max(x)}->std::same_as<float>);
XF_CALL(add_scaled, OneRow, add_scaled(x, some<const T*>(), 1.f));

// ---- numbers ------------------------------------------------------------------------------------

// What both a single lane and a vector of lanes must support.
template <class V>
concept Number = requires(V a) {
  { V(exp2(a)) } -> std::same_as<V>;
  { V(log2(a)) } -> std::same_as<V>;
  { V(magnitude(a)) } -> std::same_as<V>;
  { V(inverse(a)) } -> std::same_as<V>;
  { V(divide(a, a)) } -> std::same_as<V>;
  { V(max(a, a)) } -> std::same_as<V>;
  { V(select(a < a, a, a)) } -> std::same_as<V>;
};
static_assert(Number<Floats> && Number<float>);
static_assert(requires(Floats f, Ints i, Bools m, const float* data) {
  { Floats(sqrt(f)) + Floats(tanh(f)) + Floats(log2_of_any(f)) };
  { rounded<T>(f) };
  { Ints(at_most(i, 3)) + Ints(to_ints(m)) };
  { Floats(signed_to_floats(i)) + Floats(to_floats<Floats>(i)) };
  { Bools(to_bools(true)) };
  { lowest_of(i) } -> std::same_as<int>;
  { Ints(lane_index()) };
  { Floats(value_at(data, i)) };
  { lowest_of(Ints(lane_index() + kLanes)) } -> std::same_as<int>;
});

#undef XF_CALL
#undef XF_TYPE

}  // namespace xeflash::contract
