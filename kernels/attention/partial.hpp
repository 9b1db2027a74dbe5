// Splits the keys of a row, and stores the result of each split in fp32: O normalised by the
// split's own keys, m, and l. A log-sum-exp in place of m and l would lose bits of l beside a large
// m.
#pragma once

#include "attention/residual.hpp"
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

template <class Config>
XF_INLINE bool is_split(const FwdParams& p) {
  return Config::splits_keys && p.splits > 1;
}

// The memory for the results of the splits of a row: O of all splits comes first, each padded to
// whole lines, then all m, then all l. Rows follow each other as those of the LSE do.
struct Partial {
  int64_t stride, row;  // floats from one O to the next, and from one row to the next

  XF_INLINE Partial(const FwdParams& p, int dv)
      : stride((dv + 15) / 16 * 16), row((p.splits * (stride + 2) + 15) / 16 * 16) {}
  // These return O, m and l of one split: (batch, row, head) as the output has them.
  XF_INLINE TensorArg o(const FwdParams& p, int split) const { return at(p, split * stride); }
  XF_INLINE TensorArg m(const FwdParams& p, int split) const {
    return at(p, p.splits * stride + split);
  }
  XF_INLINE TensorArg l(const FwdParams& p, int split) const {
    return at(p, p.splits * (stride + 1) + split);
  }
  // Returns the first float of one row.
  XF_INLINE float* of(const FwdParams& p, const Sequence& seq, int head, int query) const {
    return seq.rows_per_query<float>(at(p, 0), head, query).row(0);
  }

 private:
  XF_INLINE TensorArg at(const FwdParams& p, int64_t offset) const {
    return {p.partial + offset, p.lse_batch * row, row, p.lse_head * row};
  }
};

// Stores columns of the rows of a tile as the partial result of one split.
template <class Config, class OwnRows, class Output, class Max, class Sum>
XF_INLINE void store_partial(const FwdParams& p, const OwnRows& rows, int split, int column,
                             const Output& O, const Max& m, const Sum& l) {
  const Partial partial(p, Config::head_dim_v);
  store(rows.template of<float>(partial.o(p, split)).columns(column, Config::head_dim_v), O);
  if (column > 0) return;
  store(rows.template of<float>(partial.m(p, split)), m);
  store(rows.template of<float>(partial.l(p, split)), l);
}

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
    store_output<T>(p, seq, head, 0, column, Config::head_dim_v, O, r, factor);
    if (p.lse && column == 0) *seq.first_of_rows(p, p.lse, head) = row.log_sum_exp(p.empty_lse);
  } else {
    const Partial partial(p, Config::head_dim_v);
    const auto first = [&](const TensorArg& t) { return seq.rows_per_query<float>(t, head, 0); };
    store_row(first(partial.o(p, work.split)).columns(column, Config::head_dim_v), O, r, factor);
    if (column == 0) {
      *first(partial.m(p, work.split)).row(0) = m;
      *first(partial.l(p, work.split)).row(0) = l;
    }
  }
}

}  // namespace xeflash
