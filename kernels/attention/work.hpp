// Which rows and keys a work-item owns: the launch's groups, dense or packed sequences.
#pragma once

#include "attention/params.hpp"
#include "tile/tile.hpp"

namespace xeflash {

// One block of query rows of one head, and one part of its output's columns. The threads of a group
// take neighbouring blocks, which read the same keys. Long causal rows come first, so that the tail
// of a launch is short.
struct Work {
  int batch, head, block, part;

  XF_INLINE Work(GroupIndex group, GroupIndex threads, GroupIndex parts, GroupIndex row_blocks,
                 GroupIndex heads) {
    const GroupIndex blocks = (row_blocks + threads - 1) / threads;
    const GroupIndex tile = group / parts, pair = tile / blocks;
    part = static_cast<int>(group - tile * parts);
    block = static_cast<int>((blocks - 1 - (tile - pair * blocks)) * threads) + thread_in_group();
    batch = static_cast<int>(pair / heads);
    head = static_cast<int>(pair - batch * heads);
  }
};

// The lengths of sequence `batch` and where it starts in packed arrays.
struct Sequence {
  int batch, sq, sk;
  int64_t q0 = 0, k0 = 0;

  XF_INLINE Sequence(const FwdParams& p, int b) : batch(b), sq(p.max_q), sk(p.max_k) {
    if (p.cu_q) {
      q0 = p.cu_q[b];
      sq = p.cu_q[b + 1] - p.cu_q[b];
    }
    if (p.cu_k) {
      k0 = p.cu_k[b];
      sk = p.cu_k[b + 1] - p.cu_k[b];
    }
    if (p.used_k) sk = p.used_k[b] < sk ? p.used_k[b] : sk;
  }

  // The rows of one head, from row `first` on.
  template <class T>
  XF_INLINE Rows<T> q_rows(const TensorArg& t, int head, int first) const {
    return {static_cast<T*>(t.data) + batch * t.batch + head * t.head + (q0 + first) * t.row, t.row,
            sq - first};
  }
  // The first row of `count` heads from `head` on.
  template <class T>
  XF_INLINE Rows<T> q_heads(const TensorArg& t, int head, int count) const {
    return {q_rows<T>(t, head, 0).data, t.head, count};
  }
  template <class T>
  XF_INLINE Rows<T> k_rows(const TensorArg& t, int head) const {
    return {static_cast<T*>(t.data) + batch * t.batch + head * t.head + k0 * t.row, t.row, sk};
  }
  XF_INLINE float* lse(const FwdParams& p, int head) const {
    return p.lse + batch * p.lse_batch + head * p.lse_head + q0;
  }
};

// What the rows of a tile are: the queries of a head; or, for a single query, the heads that share
// its keys, so that these are read once for all of them.
template <bool kHeads>
struct TileRows {
  const Sequence& seq;
  int head_k, head, row, count;  // of the first row; rows in all

  XF_INLINE TileRows(const FwdParams& p, const Sequence& s, const Work& work, int Br)
      : seq(s), row(work.block * Br) {
    const int group = p.heads_q / p.heads_k;
    head_k = kHeads ? work.head : work.head / group;
    head = kHeads ? work.head * group : work.head;
    count = kHeads ? (seq.sq > 0 ? group : 0) : seq.sq;
  }
  template <class T>
  XF_INLINE Rows<T> of(const TensorArg& t) const {
    if constexpr (kHeads)
      return seq.q_heads<T>(t, head + row, count - row);
    else
      return seq.q_rows<T>(t, head, row);
  }
  // The query that row r belongs to.
  template <class I>
  XF_INLINE I query(I r) const {
    if constexpr (kHeads)
      return I(0);
    else
      return r;
  }
  template <class Values>
  XF_INLINE void store_lse(const FwdParams& p, const Values& lse) const {
    if constexpr (kHeads)
      store(seq.lse(p, head + row), p.lse_head, count - row, lse);
    else
      store(seq.lse(p, head) + row, seq.sq - row, lse);
  }
};

}  // namespace xeflash
