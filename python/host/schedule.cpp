#include "schedule.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace xeflash {
namespace {

// Threads with 256 registers that live in a vector engine of a GPU.
constexpr int64_t kThreadsOfEngine = 4;

// Keys that the window of one query leaves.
int64_t seen_at_most(const FwdParams& p) {
  if (p.left == kUnbounded || p.right == kUnbounded) return p.max_k;
  return std::min<int64_t>(p.max_k, int64_t{p.left} + p.right + 1);
}
// Of a split on a CPU. Where the heads of a key lie beside each other, work-items that follow each
// other read these (SplitWork): 256 KiB of rows keep their pages and what is fetched ahead at hand,
// which is up to twice as fast as a head after the other.
int64_t most_keys_of_split(const Array& k, Layout layout) {
  constexpr int64_t kBytes = 256 << 10, kLeastKeys = 32;
  const Axes axes = axes_of(layout);
  const int64_t row = std::abs(k.strides[axes.row]), head = std::abs(k.strides[axes.head]);
  if (k.shape[axes.head] < 2 || head >= row) return std::numeric_limits<int64_t>::max();
  return std::max(kLeastKeys, kBytes / (row * size_of(k.dtype)));
}
// Enough work-items to fill the device a few times over, so that it ends evenly; at least 256 keys
// each, so that merging stays cheap.
int splits_on_cpu(int64_t items, int64_t keys, int64_t most_keys, int compute_units) {
  const int64_t wanted = (4 * compute_units + items - 1) / items;
  const int64_t to_fill = std::min(wanted, (keys + 255) / 256);
  return static_cast<int>(std::max({int64_t{1}, to_fill, (keys - 1) / most_keys + 1}));
}
// On a GPU one wave of threads: a second one that is not full would take as long as the first. At
// least 128 keys each: what a thread reads in about the time that the launch of the merging kernel
// takes. And 32 for each of a tile's rows: a split reads 2 bytes of Q a column and row, writes 4 of
// O, and they are read again to be merged, which is then at most 8 % of its keys' and values'.
int splits_on_gpu(int64_t threads, int64_t keys, int rows, int vector_engines) {
  const int64_t least = std::max(128, 32 * rows);
  const int64_t wanted = kThreadsOfEngine * vector_engines / threads;
  return static_cast<int>(std::max<int64_t>(1, std::min(wanted, (keys + least - 1) / least)));
}

}  // namespace

uint8_t rows_for(const Desc& desc, const Problem& p) {
  const int64_t group = p.heads_q / p.heads_k;
  if (desc.algorithm == Algorithm::kDecode) {
    const int64_t tiles = (group + 15) / 16;
    return static_cast<uint8_t>((group + tiles - 1) / tiles);
  }
  const int64_t filled = desc.packed_heads ? p.sq * group : p.sq;
  uint8_t rows = 16;
  while (rows < 128 && rows < filled) rows *= 2;
  return rows;
}

bool packs_heads(const Problem& p, const FwdRequest& r) {
  constexpr int64_t kFewQueries = 16, kMostHeads = 256;  // see PackedRow
  const int64_t group = p.heads_q / p.heads_k;
  const bool same_bias = !p.bias.data || p.bias.ndim < 3 || p.bias.shape[p.bias.ndim - 3] == 1;
  return group > 1 && group <= kMostHeads && p.sq <= kFewQueries && same_bias && !p.alibi.data &&
         p.score_mod.id == ScoreModId::kNone && r.dropout == 0;
}

bool splits_keys(const Problem& p, const Desc& desc, const DeviceFacts& facts) {
  constexpr int64_t kManyKeys = 512, kTurns = 8;
  const int64_t rows = desc.packed_heads ? p.sq * (p.heads_q / p.heads_k) : p.sq;
  const int64_t heads = desc.packed_heads ? p.heads_k : p.heads_q, height = rows > 16 ? 16 : 8;
  const int64_t tiles = p.batch * heads * ((rows + height - 1) / height);
  return p.sk >= kManyKeys && tiles * kTurns <= kThreadsOfEngine * facts.compute_units;
}

int64_t decode_groups(const Problem& p, const Kernels& kernels) {
  const int64_t group = p.heads_q / p.heads_k;
  const int64_t tiles = (group + kernels.block_q - 1) / kernels.block_q;
  return p.batch * p.heads_k * tiles * kernels.groups_of_rows;
}

int32_t splits_for(const Problem& p, const FwdRequest& r, const Kernels& kernels,
                   const FwdParams& params, const DeviceFacts& facts) {
  if (r.splits > 0) return static_cast<int32_t>(r.splits);
  const int64_t items = decode_groups(p, kernels);
  if (facts.type == "cpu") {
    return splits_on_cpu(items, seen_at_most(params), most_keys_of_split(p.k, p.k_layout(r.layout)),
                         facts.compute_units);
  }
  const auto rows = static_cast<int>(std::min<int64_t>(p.heads_q / p.heads_k, kernels.block_q));
  return splits_on_gpu(items * kernels.threads, params.max_k, rows, facts.compute_units);
}

}  // namespace xeflash
