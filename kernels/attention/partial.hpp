// How the keys of a row are split, and what each split stores, in fp32: O normalised by the split's
// own keys, m, and l. A log-sum-exp in place of m and l would lose bits of l beside a large m.
#pragma once

#include "attention/rest.hpp"
#include "attention/softmax.hpp"

namespace xeflash {

// Up to `tile` query heads of one KV head, one split of the keys, and one part of O's columns.
// Groups that follow each other read the same split, first of one KV head and then of the next,
// which may lie beside it in memory.
struct SplitWork {
  int batch, head, heads, split, part;

  XF_INLINE SplitWork(const FwdParams& p, Group::Index group, int tile, int parts) {
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

// Where the results of the splits of a head are kept. In memory, O of all splits comes first, each
// row padded to whole vectors, then all m, then all l.
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

// Stores columns of row r of O: as the split's partial result, or as the result if it is the only
// split.
template <class Config, class Output>
XF_INLINE void store_split(const FwdParams& p, const Sequence& seq, const SplitWork& work,
                           int column, Output& O, int r, float m, float l,
                           const Exponents& exponents) {
  using T = typename Config::Element;
  const int head = work.head + r;
  RowState<float> row(m, l, exponents);
  if (p.sinks && p.splits == 1) row.add_sink(p.sinks[head]);
  const float factor = row.normaliser(p.v_scale);
  if (p.splits == 1) {
    store_output<T>(p, seq, head, column, Config::head_dim_v, O, r, factor);
    if (p.lse && column == 0) *seq.first_of_rows(p, p.lse, head) = row.log_sum_exp(p.empty_lse);
  } else {
    const Partial part(p, work.batch, head, Config::head_dim_v);
    store_row(part.o.from(work.split).columns(column, Config::head_dim_v), O, r, factor);
    if (column == 0) {
      part.m[work.split] = m;
      part.l[work.split] = l;
    }
  }
}

}  // namespace xeflash
