// What one split of a row's keys leaves behind: O normalised by its own keys, in fp32, and its
// log-sum-exp.
#pragma once

#include "attention/work.hpp"

namespace xeflash {

// Some heads of one KV head, over one split of the keys. `tile` heads share a work-item.
struct SplitWork {
  int batch, head, heads, split;

  XF_INLINE SplitWork(const FwdParams& p, GroupIndex group, int tile) {
    const int per_kv_head = p.heads_q / p.heads_k, tiles = (per_kv_head + tile - 1) / tile;
    split = static_cast<int>(group % p.splits);
    group /= p.splits;
    const int first = static_cast<int>(group % tiles) * tile;
    group /= tiles;
    head = static_cast<int>(group % p.heads_k) * per_kv_head + first;
    heads = per_kv_head - first < tile ? per_kv_head - first : tile;
    batch = static_cast<int>(group / p.heads_k);
  }
};

// Where the results of all splits of a row are kept: O rows padded to whole vectors, then the LSEs.
struct Partial {
  float *o, *lse;
  int64_t o_stride;

  XF_INLINE Partial(const FwdParams& p, int batch, int head, int dv)
      : o_stride((dv + 15) / 16 * 16) {
    const int64_t rows = static_cast<int64_t>(p.batch) * p.heads_q;
    const int64_t first = (static_cast<int64_t>(batch) * p.heads_q + head) * p.splits;
    o = p.partial + first * o_stride;
    lse = p.partial + rows * p.splits * o_stride + first;
  }
};

// Maximum (base 2) and sum of a row at its end.
struct RowState {
  float m, l;

  // A sink is a key without a value.
  XF_INLINE void add_sink(float logit_log2) {
    const float top = max(m, logit_log2);
    l = l * exp2(m - top) + exp2(logit_log2 - top);
    scale = exp2(m - top);
    m = top;
  }
  XF_INLINE float normaliser() const { return l == 0.f ? 0.f : scale / l; }
  XF_INLINE float log_sum_exp(float empty) const {
    if (m == kInf) return m;  // although l is no number then
    return l == 0.f ? empty : (m + log2(l)) * kLn2;
  }

  float scale = 1.f;
};

}  // namespace xeflash
