#include "schedule.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>

namespace xeflash {
namespace {

// Whether the rows of a tile are keys.
bool has_rows_of_keys(const Desc& desc) {
  return desc.algorithm == Algorithm::kBackwardK || desc.algorithm == Algorithm::kBackward;
}

// Of a head, or of the heads that share its keys where these are packed.
int64_t rows_of_head(const Desc& desc, const Problem& p) {
  return has_rows_of_keys(desc) ? p.sk : desc.packed_heads ? p.sq * (p.heads_q / p.heads_k) : p.sq;
}

// Keys that the window of one query leaves.
int64_t seen_at_most(const FwdParams& p) {
  if (p.left == kUnbounded || p.right == kUnbounded) return p.max_k;
  return std::min<int64_t>(p.max_k, int64_t{p.left} + p.right + 1);
}

// Bytes from one key to the next, if its heads lie between: else 0.
int64_t bytes_of_key(const Array& k, Layout layout) {
  const Axes axes = axes_of(layout);
  const int64_t row = std::abs(k.strides[axes.row]), head = std::abs(k.strides[axes.head]);
  return k.shape[axes.head] < 2 || head >= row ? 0 : row * size_of(k.dtype);
}

}  // namespace

uint8_t rows_for(const Desc& desc, const Problem& p, const Schedule& schedule) {
  const int64_t group = p.heads_q / p.heads_k;
  if (desc.algorithm == Algorithm::kDecode) {
    return static_cast<uint8_t>(divide_up(group, divide_up(group, schedule.tile_rows)));
  }
  const int64_t filled = rows_of_head(desc, p);
  int rows = schedule.least_rows;
  while (rows < schedule.most_rows && rows < filled) rows *= 2;
  return static_cast<uint8_t>(rows);
}

uint8_t rows_for_cores(const Desc& desc, const Problem& p, const FwdRequest& r,
                       const Device& device) {
  const Schedule& s = schedule_of(device);
  if (s.key_rows == 0 || desc.algorithm == Algorithm::kDecode ||
      std::max(p.d, p.dv) > s.low_head_dim)
    return desc.rows;
  const int64_t heads =
      p.batch * (has_rows_of_keys(desc) || desc.packed_heads ? p.heads_k : p.heads_q);
  // Of a triangle of scores a core has a long tile and a short one.
  const bool triangle = (r.causal || r.right == 0) && r.left < 0 && p.sk <= p.sq;
  const int64_t in_turn = int64_t{triangle ? 2 : 1} * device.facts.compute_units;
  const auto time = [&](int rows) {
    return divide_up(heads * divide_up(rows_of_head(desc, p), rows), in_turn) * (rows + s.key_rows);
  };
  int best = desc.rows;
  for (int rows = desc.rows / 2; rows >= s.low_rows; rows /= 2) {
    if (time(rows) < time(best)) best = rows;
  }
  return static_cast<uint8_t>(best);
}

Desc stand_in_for(Desc desc, const Schedule& s) {
  const bool decode = desc.algorithm == Algorithm::kDecode;
  if (desc.rows > 1) desc.rows = static_cast<uint8_t>(decode ? s.stand_in_heads : s.most_rows);
  if (desc.page_unit < s.page_unit) desc.page_unit = kPageKeys;
  desc.packed_heads = desc.split_keys = false;
  return desc;
}

uint8_t page_unit_for(const Problem& p, const Schedule& schedule) {
  int64_t unit = kPageKeys;
  while (p.cache.page > 0 && unit < schedule.page_unit && p.cache.page % (2 * unit) == 0) unit *= 2;
  return static_cast<uint8_t>(unit);
}

bool packs_heads(const Problem& p, const FwdRequest& r, const Schedule& schedule) {
  constexpr int64_t kMostHeads = 256;  // see PackedRow
  const int64_t group = p.heads_q / p.heads_k;
  const bool same_bias = !p.bias.data || p.bias.ndim < 3 || p.bias.shape[p.bias.ndim - 3] == 1;
  return group > 1 && group <= kMostHeads && p.sq <= schedule.packed_queries && same_bias &&
         !p.alibi.data && p.score_mod.id == ScoreModId::kNone && r.dropout == 0;
}

bool splits_keys(const Problem& p, const Desc& desc, const Device& device) {
  const Schedule& s = schedule_of(device);
  if (s.turns == 0 || desc.algorithm != Algorithm::kForward) return false;
  const int64_t rows = desc.packed_heads ? p.sq * (p.heads_q / p.heads_k) : p.sq;
  const int64_t heads = desc.packed_heads ? p.heads_k : p.heads_q;
  const int64_t tiles =
      p.batch * heads * divide_up(rows, rows > s.tile_rows ? s.tile_rows : s.tile_rows / 2);
  return p.sk >= s.turn_keys && tiles * s.turns <= s.threads_of_unit * device.facts.compute_units;
}

int64_t decode_groups(const Problem& p, const Kernels& kernels) {
  const int64_t group = p.heads_q / p.heads_k;
  return p.batch * p.heads_k * divide_up(group, kernels.block_q) * kernels.groups_of_rows;
}

int32_t splits_for(const Problem& p, const FwdRequest& r, const Kernels& kernels,
                   const FwdParams& params, const Device& device) {
  if (r.splits > 0) return static_cast<int32_t>(r.splits);
  const Schedule& s = schedule_of(device);
  const int64_t keys = seen_at_most(params);
  const int64_t threads = decode_groups(p, kernels) * kernels.threads;
  const int64_t room = int64_t{s.threads_of_unit} * device.facts.compute_units;
  const int64_t rows = std::min<int64_t>(p.heads_q / p.heads_k, kernels.block_q);
  int64_t least = std::max<int64_t>(s.split_keys, s.split_keys_of_row * rows);
  // Keys that are split anyway are so for units that would have none.
  if (s.split_few && keys > least)
    least = std::clamp<int64_t>(keys * threads / device.facts.compute_units, s.split_few, least);
  const int64_t wanted = s.whole_waves ? room / threads : divide_up(room, threads);
  int64_t splits = std::min(wanted, divide_up(keys, least));
  if (const int64_t bytes = bytes_of_key(p.k, p.k_layout(r.layout)); s.split_bytes && bytes) {
    splits =
        std::max(splits, divide_up(keys, std::max(int64_t{s.split_least}, s.split_bytes / bytes)));
  }
  return static_cast<int32_t>(std::max<int64_t>(1, splits));
}

}  // namespace xeflash
