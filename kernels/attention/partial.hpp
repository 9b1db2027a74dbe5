// What one split of a row's keys leaves behind, in fp32: O normalised by its own keys, m, and l.
// The log-sum-exp would be rounded to what fp32 has beside m.
#pragma once

#include "attention/work.hpp"

namespace xeflash {

// Some heads of one KV head, over one split of the keys, and one part of O's columns. `tile` heads
// share a work-item. Those that follow each other read the same keys of heads that may lie beside
// each other.
struct SplitWork {
  int batch, head, heads, split, part;

  XF_INLINE SplitWork(const FwdParams& p, GroupIndex group, int tile, int parts) {
    const int per_kv_head = p.heads_q / p.heads_k, tiles = (per_kv_head + tile - 1) / tile;
    part = static_cast<int>(group % parts);
    group /= parts;
    const int first = static_cast<int>(group % tiles) * tile;
    group /= tiles;
    head = static_cast<int>(group % p.heads_k) * per_kv_head + first;
    heads = per_kv_head - first < tile ? per_kv_head - first : tile;
    group /= p.heads_k;
    split = static_cast<int>(group % p.splits);
    batch = static_cast<int>(group / p.splits);
  }
};

// Where the results of all splits of a row are kept: O rows padded to whole vectors, then all m,
// then all l.
struct Partial {
  Rows<float> o;
  float *m, *l;

  XF_INLINE Partial(const FwdParams& p, int batch, int head, int dv) {
    const int64_t stride = (dv + 15) / 16 * 16, rows = static_cast<int64_t>(p.batch) * p.heads_q;
    const int64_t first = (static_cast<int64_t>(batch) * p.heads_q + head) * p.splits;
    o = {p.partial + first * stride, stride, p.splits};
    m = p.partial + rows * p.splits * stride + first;
    l = m + rows * p.splits;
  }
};

}  // namespace xeflash
