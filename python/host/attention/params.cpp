#include "host/attention/params.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "host/attention/score_hooks.hpp"
#include "tile/quantised.hpp"

namespace xeflash {
namespace {

constexpr int kDropSteps = 1 << 16;  // of a probability: 16 random bits an element

// Returns the scale as a normal float, because a scale of 0 or infinity times a hidden score is not
// a number. The smallest scale must keep the first score of a row more than the slack above
// kNoScore.
float scale_of(double scale) {
  using Float = std::numeric_limits<float>;
  const double size = std::clamp<double>(std::fabs(scale), 2 * Float::min(), Float::max());
  return static_cast<float>(std::copysign(size, scale));
}

void set_features(FwdParams& params, const Problem& p, const FwdRequest& r) {
  if (p.bias.data) {
    int64_t strides[4] = {0, 0, 0, 0};
    for (int i = 0; i < p.bias.ndim; ++i) {
      const int from = p.bias.ndim - 1 - i;
      if (p.bias.shape[from] > 1) strides[3 - i] = p.bias.strides[from];
    }
    params.bias = {p.bias.data, strides[0], strides[1], strides[2], strides[3]};
  }
  const auto set = [&](const ScoreHook& hook) {
    if (hook.used(p, r)) hook.set(params, p, r);
  };
  std::ranges::for_each(kScoreHooks, set);
  std::ranges::for_each(kMasks, set);
  if (p.sinks.data) params.sinks = reinterpret_cast<const float*>(p.sinks.data);
  // flash-attn takes a side of the window as unlimited if it is as long as all keys (of packed
  // sequences: as their greatest length), wherever the diagonal is. A part does not have all keys.
  const int64_t all_keys = p.packed ? r.max_seqlen_k : p.sk;
  auto side = [&](int64_t n) {
    const bool unlimited = n < 0 || (r.layout != Layout::kBHSD && r.bottom_right && n >= all_keys);
    return unlimited ? kUnbounded : static_cast<int32_t>(std::min<int64_t>(n, kMaxLength));
  };
  params.left = side(r.window_left);
  params.right = side(r.window_right);
  if (r.causal) params.right = 0;
  params.top_left = !r.bottom_right;
  const double scale =
      r.softmax_scale ? *r.softmax_scale : 1.0 / std::sqrt(static_cast<double>(p.d));
  params.scale = scale_of(scale * p.cache.k_factor);
  params.unified_max = static_cast<float>(r.unified_max.value_or(0));
  const bool joins = r.layout == Layout::kBHSD || p.part.other_lse.data;  // as torch has it
  params.empty_lse =
      joins ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
  params.seed = r.seed;
  params.offset = r.offset;
  params.drop_below = static_cast<uint32_t>(std::lround(r.dropout_p * kDropSteps));
  params.keep_scale = params.drop_below < kDropSteps
                          ? float{kDropSteps} / static_cast<float>(kDropSteps - params.drop_below)
                          : 0.f;
}

// Returns the number by which GPUs divide O if V's rows have scales.
float factor_unit(DType dtype) {
  switch (dtype) {
    case DType::kE4M3:
      return kFactorUnit<e4m3>;
    case DType::kE5M2:
      return kFactorUnit<e5m2>;
    case DType::kU8:
      return kFactorUnit<nibbles>;
    default:
      return kFactorUnit<int8_t>;
  }
}

void set_cache(FwdParams& params, const Cache& c) {
  const auto ints = [](const Array& a) { return reinterpret_cast<const int32_t*>(a.data); };
  params.cache.lengths = ints(c.lengths);
  params.cache.sequences = ints(c.sequences);
  params.cache.left_pad = ints(c.left_pad);
  params.cache.table = ints(c.table);
  params.cache.table_row = c.table.strides[0];
  params.cache.page = static_cast<int32_t>(c.page);
  params.cache.added = static_cast<int32_t>(c.added);
  params.cache.k_scale = scale_arg(c.k_scale, c);
  params.cache.v_scale = scale_arg(c.v_scale, c);
  params.v_scale = c.v_factor;
}

}  // namespace

FwdParams params_of(const Problem& p, const FwdRequest& r, const Outputs& to, const Place& place) {
  FwdParams params{};
  params.q = tensor_arg(p.q, r.layout);
  params.k = tensor_arg(p.k, p.k_layout(r.layout));
  params.v = tensor_arg(p.v, p.k_layout(r.layout));
  params.o = tensor_arg(to.out, r.layout);
  if (to.residual.data) params.residual = tensor_arg(to.residual, r.layout);
  if (p.packed) {
    params.cu_q = reinterpret_cast<const int32_t*>(p.cu_q.data);
    params.cu_k = reinterpret_cast<const int32_t*>(p.cu_k.data);
    params.used_k = reinterpret_cast<const int32_t*>(p.used_k.data);
  }
  const Part& part = p.part;
  params.other_lse = reinterpret_cast<const float*>(part.other_lse.data);
  params.q_start = part.q_start;
  params.k_start = part.k_start;
  params.q_starts = reinterpret_cast<const int32_t*>(part.q_starts.data);
  params.k_starts = reinterpret_cast<const int32_t*>(part.k_starts.data);
  params.first_head = part.first_head;
  params.all_heads = part.all_heads;
  params.batch = static_cast<int32_t>(p.batch);
  params.heads_q = static_cast<int32_t>(p.heads_q);
  params.heads_k = static_cast<int32_t>(p.heads_k);
  params.max_q = static_cast<int32_t>(p.sq);
  params.max_k = static_cast<int32_t>(p.cache.given ? p.cache.max_keys : p.sk);
  params.splits = 1;
  params.lse = reinterpret_cast<float*>(to.lse.data);
  params.lse_batch = p.packed ? 0 : p.heads_q * p.sq;
  params.lse_head = p.packed ? p.tokens_q : p.sq;
  set_features(params, p, r);
  set_cache(params, p.cache);
  const bool unit = p.cache.v_scale.data && place.device.facts.type != "cpu";
  if (unit) params.v_scale /= factor_unit(p.v.dtype);
  return params;
}

}  // namespace xeflash
