// Checks that a backend has all that the kernels of products require, beside tile/contract.hpp: the
// words that the other headers of this folder list, one by one. The kernels themselves do not
// include it.
#pragma once

#include "products/blocks.hpp"
#include "products/logits.hpp"
#include "products/products.hpp"
#include "products/top_list.hpp"
#include "products/turns.hpp"
#include "tile/contract.hpp"

namespace xeflash::contract {

struct ProductConfig {
  using Element = T;
  using Bias = float;
  using Weights = xeflash::Weights<T, void, 0>;
  static constexpr int rows = 16, outputs = 96, columns = 64, inputs = 64;
  static constexpr bool one_step = false;
};

// ---- few rows -----------------------------------------------------------------------------------

using W = ProductConfig::Weights;
using Sums = Products<ProductConfig>;
static_assert(requires { allocate_products<ProductConfig>(); });
XF_CALL(add_products, Sums, add_products(x, some<const Matrix>(), some<const W>(), 0));
XF_CALL(sums_of_turns, Sums, sums_of_turns(x, some<const W>()));
XF_CALL(store_products, Sums, store_products(some<const Rows<T>>(), x, some<const T*>(), 0));

// ---- blocks -------------------------------------------------------------------------------------

using Block = BlockSums<ProductConfig>;
using SlopeRows = Rows<const Slope<T>>;
static_assert(requires { allocate_block<ProductConfig>(); });
XF_CALL(add_block, Block, add_block(x, some<const SlopeRows>(), some<const Matrix>(), 0));
XF_CALL(add_to, Block, add_to(some<const Rows<float>>(), x, true));
XF_CALL(add_from, Block, add_from(x, some<const Rows<float>>()));
XF_CALL(store_block, Block, store_block(some<const Rows<T>>(), x));

// ---- scores and logits --------------------------------------------------------------------------

using Kept = KeptScores<ProductConfig>;
using Inputs = KeptInputs<T, R, D>;
using Targets = RowInts<R>;
constexpr auto ignores = [](auto&&...) {};
constexpr auto no_bias = [](auto, auto) { return Floats(0.f); };
XF_TYPE(ScoreRows, ScoreRows<ProductConfig>);
XF_CALL(KeptScores, Kept, x.at(0));
XF_CALL(KeptInputs, Inputs, x.at(0, ignores));
XF_CALL(exp_of_rows, Score, exp_of_rows<6, true>(x, some<const Rowwise>(), some<ColSum<R>>()));
XF_CALL(store_scaled, Score, store_scaled(some<const Rows<T>>(), x, some<const Rowwise>()));
XF_CALL(add_or_set, Score, add_or_set(x, true, ignores));
XF_CALL(add_scaled_bias, Score, add_scaled_bias(x, 1.f, 0, 0, no_bias));
XF_CALL(with_inputs, const Matrix, with_inputs<R, D>(x, 0, ignores));
XF_CALL(with_step, const Matrix, with_step<R, D>(x, 0, ignores));
XF_CALL(targets_of, const TargetArg, {targets_of<R>(x, 0, 1, 1)}->std::same_as<Targets>);
XF_CALL(counts_of, const TargetArg, {counts_of<R>(x, 0, 1, 1)}->std::same_as<Rowwise>);
XF_CALL(load_line, const float, {load_line<R>(&x, 1, 0.f)}->std::same_as<Rowwise>);
XF_CALL(add_to_columns, Score, add_to_columns(x, some<const T*>(), 0, 1));
XF_CALL(pick, Rowwise, pick(x, some<const Score>(), some<const Targets>(), 0));
XF_CALL(sum_of_differences, const Score,
        {sum_of_differences(x, some<const Rowwise>(), 0, 1)}->std::same_as<Rowwise>);
XF_CALL(slopes_of, Score,
        slopes_of(x, some<const Rowwise>(), some<const Rowwise>(), some<const Rowwise>(),
                  some<const Rowwise>(), some<const Rowwise>(), some<const Targets>(), 0, 0,
                  some<const LogitParams>()));
XF_CALL(store_turned, const Score, store_turned(some<const Rows<T>>(), x));
XF_CALL(lanes_at, const float, {lanes_at(&x)}->std::same_as<Floats>);
XF_CALL(store_lanes, Floats, store_lanes(some<T*>(), x, 1));
XF_CALL(sum_of, const Rowwise, {sum_of(x)}->std::same_as<float>);

// ---- lists --------------------------------------------------------------------------------------

using Lists = TopLists<R>;
XF_CALL(TopLists, Lists, x.add(some<const Score>(), 0));
XF_CALL(TopList, TopList, x.insert(1.f, 0), x.value(0), x.token(0), x.last, x.find_last(),
        x.store(some<const TopKParams>(), 0));

// ---- turns --------------------------------------------------------------------------------------

using Logits = Row<T>;
static_assert(kBlock % kLanes == 0);
static_assert(requires { allocate_turns(); });
XF_CALL(fold_turns, float, {fold_turns(x, [](auto a, auto) { return a; })}->std::same_as<float>);
XF_CALL(Row, const Logits, {x.at(0)}->std::same_as<Floats>);
XF_CALL(as_ints, Floats, {as_ints(x)}->std::same_as<Ints>);
XF_CALL(to_words, Ints, {to_words(x)}->std::same_as<Words>);
XF_CALL(floats_of_halves, Words, {floats_of_halves(x)}->std::same_as<Floats>);
XF_CALL(is_any, Bools, {is_any(x)}->std::same_as<bool>);
XF_CALL(largest_of, Floats, {largest_of(x)}->std::same_as<float>);
XF_CALL(sum_of_lanes, Floats, {sum_of_lanes(x)}->std::same_as<float>);
XF_CALL(sum_of_lanes_of_ints, Ints, {sum_of_lanes(x)}->std::same_as<int>);
XF_CALL(number_of_row, const PerRow<float>, {number_of_row(x, 0)}->std::same_as<float>);
XF_CALL(halves_of_row, const PerRow<int64_t>, halves_of_row(x, 0, some<uint32_t[2]>()));
XF_CALL(store_token, uint32_t, store_token(&x, 0, 0));
XF_CALL(multiply_high, Words, {multiply_high(x, 1u)}->std::same_as<Words>);

}  // namespace xeflash::contract
