// Finds the rows and keys that a work-item owns, by its group's index in the launch, and by the
// lengths of dense or packed sequences.
#pragma once

#include "attention/params.hpp"
#include "tile/tile.hpp"

namespace xeflash {

// One block of rows of one head, and one part of its output's columns, for a thread or a team. The
// tiles of a work-group are neighbouring blocks, which loop over the same keys (or, if the rows are
// keys, the same queries). In causal attention the last queries and the first keys have most work:
// `First` says which. A device that starts groups in order gets the blocks with most work first, so
// that the tail of a launch is short; where each core gets consecutive groups (in_parts), blocks
// with much and with little work alternate.
enum class First { last_block, first_block };
//   Each split of the keys has groups of its own; those that follow each other read the same split,
// for one head after the other.
struct Work {
  int batch, head, block, part, split;

  XF_INLINE Work(Group::Index group, Group::Index parts, Group::Index row_blocks,
                 Group::Index heads, First first = First::last_block, Group::Index splits = 1) {
    const Group::Index blocks = (row_blocks + Group::tiles - 1) / Group::tiles;
    const Group::Index tile = group / parts, pair = tile / blocks;
    Group::Index place = tile - pair * blocks;
    part = static_cast<int>(group - tile * parts);
    if constexpr (Group::in_parts) place = place % 2 ? blocks - 1 - place / 2 : place / 2;
    block =
        static_cast<int>(first == First::first_block ? place : blocks - 1 - place) * Group::tiles +
        Group::tile();
    const Group::Index share = pair / heads;
    head = static_cast<int>(pair - share * heads);
    batch = static_cast<int>(share / splits);
    split = static_cast<int>(share - batch * splits);
  }
};

// The lengths of sequence `batch` and where it starts in packed arrays.
struct Sequence {
  int batch, batch_k, sq, sk;
  int q_at, k_at;  // positions of the first row and key
  int64_t q0 = 0, k0 = 0;

  XF_INLINE Sequence(const FwdParams& p, int b)
      : batch(b),
        batch_k(p.cache.sequences ? p.cache.sequences[b] : b),
        sq(p.max_q),
        sk(p.max_k),
        q_at(p.q_start),
        k_at(p.k_start) {
    if (p.q_starts) q_at += p.q_starts[b];
    if (p.k_starts) k_at += p.k_starts[b];
    if (p.cu_q) {
      q0 = p.cu_q[b];
      sq = p.cu_q[b + 1] - p.cu_q[b];
    }
    if (p.cu_k) {
      k0 = p.cu_k[b];
      sk = p.cu_k[b + 1] - p.cu_k[b];
    }
    if (p.used_k) sk = within(p.used_k[b], sk);
    if (p.cache.lengths) sk = within(p.cache.lengths[b], sk - p.cache.added) + p.cache.added;
    if (p.cache.left_pad) {
      k0 = p.cache.left_pad[b];
      sk = k0 < sk ? sk - static_cast<int>(k0) : 0;
    }
  }

  // Returns by how many keys the diagonal is shifted: row q and key q + shift have the same
  // position. A window counts keys from there.
  XF_INLINE int shift(const FwdParams& p) const { return p.top_left ? q_at - k_at : sk - sq; }

  // Limits a length: the host cannot check lengths that are on a device.
  static XF_INLINE int within(int length, int most) {
    return length < 0 ? 0 : length < most ? length : most;
  }

  // Returns the rows of one head, from row `first` on.
  template <class T>
  XF_INLINE Rows<T> rows_per_query(const TensorArg& t, int head, int first) const {
    return {static_cast<T*>(t.data) + batch * t.batch + head * t.head + (q0 + first) * t.row, t.row,
            sq - first};
  }
  // Returns the first row of `count` heads from `head` on.
  template <class T>
  XF_INLINE Rows<T> q_heads(const TensorArg& t, int head, int count) const {
    return {rows_per_query<T>(t, head, 0).row(0), t.head, count};
  }
  template <class T>
  XF_INLINE Rows<T> rows_per_key(const TensorArg& t, int head) const {
    return {static_cast<T*>(t.data) + batch_k * t.batch + head * t.head + k0 * t.row, t.row, sk};
  }
  // Returns one head's part of `values`, which have one value per row and head, as the LSE.
  template <class T>
  XF_INLINE Line<T> line(const FwdParams& p, T* values, int head) const {
    return {values + batch * p.lse_batch + head * p.lse_head, p.lse_head, q0, sq};
  }
  template <class T>
  XF_INLINE Rows<T> per_row(const FwdParams& p, T* values, int head) const {
    return line<T>(p, values, head).rows();
  }
  template <class T>
  XF_INLINE T* first_of_rows(const FwdParams& p, T* values, int head) const {
    return values + batch * p.lse_batch + head * p.lse_head + q0;
  }
};

// Br rows from `row` on, of `count`. first() to last() are the rows of all tiles of a group that
// brings in keys together (in_step), own_last() the last of these Br rows. A group that has no rows
// at all (is_empty) leaves; where threads take turns, one whose tile has none stays, to merge.
template <int Br>
struct RowSpan {
  static constexpr int kTogether = Group::in_step ? Group::tiles * Br : Br;
  int row, count;
  XF_INLINE int first() const { return row - row % kTogether; }
  XF_INLINE int last() const { return last_of(first(), kTogether); }
  XF_INLINE int own_last() const { return last_of(row, Br); }
  XF_INLINE bool is_empty() const {
    return (Group::turns > 1 ? row - row % (Group::tiles * Br) : first()) >= count;
  }
  XF_INLINE bool has_none() const { return first() >= count; }

 private:
  XF_INLINE int last_of(int from, int rows) const {
    return (from + rows < count ? from + rows : count) - 1;
  }
};

// The rows of a tile. They are the queries of one head; or, where queries are few (kPacked), the
// queries of all heads that share a KV head, so that its keys are read once for all of them.
template <bool kPacked, int Br>
struct TileRows : RowSpan<Br> {
  using RowSpan<Br>::row, RowSpan<Br>::count;
  template <class T>
  using Matrix = Rows<T>;
  const Sequence seq;
  int head_k, head;

  XF_INLINE TileRows(const FwdParams& p, const Sequence& s, const Work& work)
      : RowSpan<Br>{work.block * Br, s.sq},
        seq(s),
        head_k(work.head / (p.heads_q / p.heads_k)),
        head(work.head) {}
  template <class T>
  XF_INLINE Rows<T> of(const TensorArg& t) const {
    return seq.rows_per_query<T>(t, head, 0).from(row);  // none of a tile beyond the last row
  }
  template <class T>
  XF_INLINE Rows<T> per_row(const FwdParams& p, T* values) const {
    return {seq.first_of_rows(p, values, head) + row, 1, count - row};
  }
  XF_INLINE ColVec<Br> sinks(const FwdParams& p) const { return p.sinks[head]; }
  // Returns the query of row r.
  template <class I>
  XF_INLINE I query(I r) const {
    return r;
  }
};

// The offset of the first head is computed as head_k x (stride x heads): when a product of two ints
// is widened and multiplied again, as in (head_k x heads) x stride, IGC 26.27 loses the upper half
// on DG2.
template <int Br>
struct TileRows<true, Br> : RowSpan<Br> {
  using RowSpan<Br>::row, RowSpan<Br>::count;
  template <class T>
  using Matrix = PackedRows<T>;
  const Sequence seq;
  PackedRow packed;
  int head_k, head;  // head is not meaningful: calls that depend on a single head are not packed

  XF_INLINE TileRows(const FwdParams& p, const Sequence& s, const Work& work)
      : RowSpan<Br>{work.block * Br, s.sq * (p.heads_q / p.heads_k)},
        seq(s),
        packed(p.heads_q / p.heads_k),
        head_k(work.head),
        head(work.head) {}
  template <class T>
  XF_INLINE PackedRows<T> of(const TensorArg& t) const {
    const TensorArg groups{t.data, t.batch, t.row, t.head * packed.heads};
    return {seq.rows_per_query<T>(groups, head_k, 0).data, t.row, t.head, packed, count, row};
  }
  template <class T>
  XF_INLINE PackedRows<T> per_row(const FwdParams& p, T* values) const {
    const int64_t group = p.lse_head * packed.heads;
    return {seq.first_of_rows(p, values, 0) + head_k * group, 1, p.lse_head, packed, count, row};
  }
  XF_INLINE ColVec<Br> sinks(const FwdParams& p) const {
    const float* first = p.sinks + int64_t{head_k} * packed.heads;
    return load_values<Br>(PackedRows<const float>{first, 0, 1, packed, count, row});
  }
  template <class I>
  XF_INLINE I query(I r) const {
    return packed.query(r);
  }
};

}  // namespace xeflash
