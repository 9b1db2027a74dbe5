#include "host/attention/schedule.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>

namespace xeflash {
namespace {

// Returns whether the rows of a tile are keys.
bool has_rows_of_keys(const Desc& desc) {
  return desc.algorithm == Algorithm::flash_bwd_dkv || desc.algorithm == Algorithm::flash_bwd;
}

// Returns the number of rows of a head, or of all heads that share its keys if heads are packed.
int64_t rows_of_head(const Desc& desc, const Problem& p) {
  return has_rows_of_keys(desc) ? p.sk : desc.packed_heads ? p.sq * (p.heads_q / p.heads_k) : p.sq;
}

// Returns the number of keys that the window and the chunk of one query leave.
int64_t seen_at_most(const FwdParams& p) {
  const int64_t keys = p.chunk ? std::min(p.max_k, p.chunk) : p.max_k;
  if (p.left == kUnbounded || p.right == kUnbounded) return keys;
  return std::min(keys, int64_t{p.left} + p.right + 1);
}

// Returns the bytes from one key to the next if other heads lie between them, else 0.
int64_t bytes_of_key(const Array& k, Layout layout) {
  const Axes axes = axes_of(layout);
  const int64_t row = std::abs(k.strides[axes.row]), head = std::abs(k.strides[axes.head]);
  return k.shape[axes.head] < 2 || head >= row ? 0 : row * size_of(k.dtype);
}

// Returns the number of work-groups of a launch that does not split keys.
int64_t groups_of_split(const Problem& p, const Desc& desc, const Kernels& kernels) {
  const int64_t group = p.heads_q / p.heads_k;
  if (desc.algorithm == Algorithm::flash_decode)
    return p.batch * p.heads_k * divide_up(group, kernels.block_q) * kernels.groups_of_rows;
  const int64_t heads = desc.packed_heads ? p.heads_k : p.heads_q;
  return static_cast<int64_t>(groups_for(desc, kernels, rows_of_head(desc, p), p.batch * heads));
}

int64_t rows_of_call(const Problem& p) {
  return p.heads_q * (p.packed ? p.tokens_q : p.batch * p.sq);
}
// Returns the floats of a row's partial results; Partial in kernels/attention/partial.hpp lays them
// out.
int64_t floats_of_row(const Problem& p, int64_t splits) {
  return whole(splits * (whole(p.dv, kLineFloats) + 2), kLineFloats);
}

// Returns the number of threads that run on the device at a time.
int64_t threads_at_a_time(const Desc& desc, const Device& device) {
  const int64_t units = device.facts.compute_units;
  return desc.access == Access::kNone ? units : schedule_of(device).threads_of_unit * units;
}
int64_t groups_at_a_time(const Desc& desc, const Kernels& kernels, const Device& device) {
  return std::max<int64_t>(1, threads_at_a_time(desc, device) / kernels.threads);
}

// Returns the number of splits for one query on a CPU.
int32_t splits_of_cores(const Problem& p, const FwdRequest& r, int64_t groups,
                        const FwdParams& params, const Device& device) {
  const Schedule& s = schedule_of(device);
  const int64_t keys = seen_at_most(params), units = device.facts.compute_units;
  int64_t least = s.split_keys;
  // If keys are split at all, it is for compute units that would have no work.
  if (keys > least) least = std::clamp<int64_t>(keys * groups / units, s.split_few, least);
  int64_t splits = std::min(divide_up(s.threads_of_unit * units, groups), divide_up(keys, least));
  if (const int64_t bytes = bytes_of_key(p.k, p.k_layout(r.layout))) {
    splits =
        std::max(splits, divide_up(keys, std::max(int64_t{s.split_least}, s.split_bytes / bytes)));
  }
  return static_cast<int32_t>(std::max<int64_t>(1, splits));
}

// Returns the number of splits by the rules that tune/schedule.py explains.
int32_t splits_in_least_time(const Problem& p, const Desc& desc, const Kernels& kernels,
                             int64_t groups, const FwdParams& params, const Device& device) {
  const Schedule& s = schedule_of(device);
  const bool gpu = desc.access != Access::kNone;
  const int64_t threads = threads_at_a_time(desc, device);
  const int64_t slots = groups_at_a_time(desc, kernels, device);
  const int64_t keys = std::max<int64_t>(1, seen_at_most(params));
  const int64_t rows = std::max<int64_t>(1, rows_of_call(p));
  // With more splits than these, some threads would have no block of keys.
  const int64_t most =
      std::min<int64_t>(kMaxSplits, divide_up(keys, int64_t{kernels.turns} * kernels.block_k));
  // The bytes of K and V, or the bytes that could be read in the time in which rows are multiplied
  // with them.
  const int64_t bytes = keys * std::max(p.batch * p.heads_k * p.bytes_per_key(),
                                        2 * rows / s.flops_of_byte * (p.d + p.dv));
  const int64_t cheap =
      bytes * kMaxSplits / (s.merge_share * 2 * rows * floats_of_row(p, kMaxSplits) * 4);
  const int64_t quarter =
      gpu && keys >= s.quarter_keys ? divide_up(threads, 4 * groups * kernels.threads) : 1;
  const int64_t least = std::clamp<int64_t>(quarter, 1, most);
  const double split_cost = double(divide_up(rows, threads)) / s.merge_splits;
  const auto time = [&](int64_t splits) {
    const double wave = double(keys) / double(splits * kernels.turns) + kernels.block_q;
    const double merging = splits == 1 ? 0 : s.merge_keys + split_cost * double(splits);
    return double(divide_up(groups * splits, slots)) * wave + merging;
  };
  int64_t best = least;
  double shortest = time(best);
  const auto consider = [&](int64_t splits) {
    splits = std::clamp(splits, least, std::max(least, std::min(most, cheap)));
    const double t = time(splits);
    if (t < shortest || (t == shortest && splits < best)) best = splits, shortest = t;
  };
  // Tries the splits that fill one wave of threads or a few waves, and the number beyond which
  // merging takes longer.
  for (int64_t waves = 1; waves <= s.most_waves; ++waves) consider(waves * slots / groups);
  consider(static_cast<int64_t>(std::sqrt(double(keys) / kernels.turns / split_cost)));
  return static_cast<int32_t>(best);
}

int32_t splits_for(const Problem& p, const FwdRequest& r, const Desc& desc, const Kernels& kernels,
                   int64_t groups, const FwdParams& params, const Device& device) {
  if (kernels.entries.size() == 1 || desc.adds_up) return 1;  // nothing merges them
  if (r.num_splits > 0) return static_cast<int32_t>(r.num_splits);
  return desc.algorithm == Algorithm::flash_decode && schedule_of(device).split_keys > 0
             ? splits_of_cores(p, r, groups, params, device)
             : splits_in_least_time(p, desc, kernels, groups, params, device);
}

// Returns whether the next blocks of K and V of all threads that run at a time fit in half of L1.
// They then also fit in L2.
bool fits_in_caches(const Problem& p, const Desc& desc, const Kernels& kernels, uint64_t groups,
                    const Device& device) {
  const Schedule& s = schedule_of(device);
  if (s.cache_of_unit == 0) return true;
  const int64_t running =
      std::min(groups_at_a_time(desc, kernels, device), static_cast<int64_t>(groups));
  const int64_t block = int64_t{kernels.turns} * kernels.block_k * p.bytes_per_key();
  return running * block <= device.facts.compute_units * s.cache_of_unit / 2;
}

}  // namespace

uint8_t rows_for(const Desc& desc, const Problem& p, const Schedule& schedule) {
  const int64_t group = p.heads_q / p.heads_k;
  if (desc.algorithm == Algorithm::flash_decode) {
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
  if (s.key_rows == 0 || desc.algorithm == Algorithm::flash_decode ||
      std::max(p.d, p.dv) > s.low_head_dim)
    return desc.rows;
  const int64_t heads =
      p.batch * (has_rows_of_keys(desc) || desc.packed_heads ? p.heads_k : p.heads_q);
  // Each core has a long tile and a short tile of a triangle of scores.
  const bool triangle = (r.causal || r.window_right == 0) && r.window_left < 0 && p.sk <= p.sq;
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
  const bool decode = desc.algorithm == Algorithm::flash_decode;
  if (desc.rows > 1) desc.rows = static_cast<uint8_t>(decode ? s.stand_in_heads : s.most_rows);
  if (desc.page_unit < s.page_unit) desc.page_unit = kPageKeys;
  desc.packed_heads = false;
  desc.split_keys = decode && s.turn_head_dim > 0;
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
         !p.alibi.data && p.score_mod.id == ScoreModId::kNone && !p.has_blocks_of_heads() &&
         r.dropout_p == 0;
}

bool splits_keys(const Problem& p, const FwdRequest& r, const Desc& desc, const Device& device) {
  const Schedule& s = schedule_of(device);
  const int64_t units = device.facts.compute_units;
  if (desc.algorithm == Algorithm::flash_decode) {
    const int64_t tiles = p.batch * p.heads_k * divide_up(p.heads_q / p.heads_k, desc.rows);
    return std::max(p.d, p.dv) <= s.turn_head_dim && p.sk >= s.turn_keys && !desc.unified_max &&
           2 * tiles <= s.threads_of_unit * units;
  }
  if (r.num_splits > 0) return r.num_splits > 1;
  const int64_t rows = rows_of_head(desc, p), heads = desc.packed_heads ? p.heads_k : p.heads_q;
  int64_t height = desc.rows;
  if (desc.access != Access::kNone) height = rows > s.tile_rows ? s.tile_rows : s.tile_rows / 2;
  const int64_t tiles = p.batch * heads * divide_up(rows, height);
  return p.sk >= s.turn_keys && tiles * s.units_of_tile <= units;
}

Sharing share_out(const Problem& p, const FwdRequest& r, const Desc& desc, const Kernels& kernels,
                  const FwdParams& params, const Device& device) {
  const int64_t groups = groups_of_split(p, desc, kernels);
  Sharing shares;
  shares.splits = splits_for(p, r, desc, kernels, groups, params, device);
  shares.groups = static_cast<uint64_t>(groups) * shares.splits;
  check_groups(shares.groups, desc.access);
  shares.looks_ahead = fits_in_caches(p, desc, kernels, shares.groups, device);
  if (shares.splits == 1) return shares;
  shares.merging_groups = static_cast<uint64_t>(p.batch) * p.heads_q * p.sq;
  check_groups(shares.merging_groups, desc.access);
  shares.floats = rows_of_call(p) * floats_of_row(p, shares.splits);
  return shares;
}

}  // namespace xeflash
