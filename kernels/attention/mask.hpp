// A Mask says which keys a row sees; mask_contract.hpp lists what kernels call of it. In a Window,
// key k is visible to row q iff -left <= k - (q + shift) <= right and k < Sk. Causal attention has
// right = 0. Blocks of keys that no row of a tile sees are skipped.
#pragma once

#include "attention/work.hpp"

namespace xeflash {

// The blocks [begin, end) of keys that some rows see, or of rows that see some keys.
struct BlockRange {
  int begin, full_begin, full_end, end;  // blocks in [full_begin, full_end) need no mask
  int first, last;                       // all visible keys, or rows, are in [first, last)
  XF_INLINE bool is_empty() const { return begin >= end; }
  XF_INLINE bool has(int j) const { return j >= begin && j < end; }
  // Returns the first visible block of j, j + step, ...; it is `end` or beyond if there is none.
  XF_INLINE int next(int j, int) const { return j; }
  // Returns the range with block j alone, or an empty one if j is not in the range.
  XF_INLINE BlockRange only(int j) const {
    BlockRange r = *this;
    r.begin = has(j) ? j : end;
    r.end = has(j) ? j + 1 : end;
    return r;
  }
  // Keeps only share number `split` of `splits` equal shares of the blocks.
  XF_INLINE void keep_share(int split, int splits) {
    const int share = (end - begin + splits - 1) / splits;
    begin = at_most(begin + split * share, end);
    end = at_most(begin + share, end);
  }
  XF_INLINE bool is_full(int j) const { return j >= full_begin && j < full_end; }
  XF_INLINE void have_none_full() { full_end = full_begin; }
  // Keeps only the blocks that another range has, too.
  XF_INLINE void intersect(const BlockRange& other) {
    begin = larger(begin, other.begin);
    full_begin = larger(full_begin, other.full_begin);
    full_end = at_most(full_end, other.full_end);
    end = larger(at_most(end, other.end), begin);
    first = larger(first, other.first);
    last = larger(at_most(last, other.last), first);
  }
};

// The keys [begin, end) of one split that a single row visits.
struct KeyRange {
  int begin, end;
  int seen_from;  // the first visible key, at or after `begin`
  // These two are those of BlockRange, but a block of Bc keys is known by its first key.
  XF_INLINE bool is_full(int key, int Bc) const { return key >= seen_from && end - key >= Bc; }
  XF_INLINE int next(int key, int, int) const { return key; }
};

struct Window {  // a Mask
  using Blocks = BlockRange;
  using Keys = KeyRange;
  int sq, sk, shift, left, right;

  XF_INLINE Window(const FwdParams& p, const Sequence& seq, int = 0)
      : sq(seq.sq), sk(seq.sk), shift(seq.shift(p)), left(p.left), right(p.right) {}

  // Returns s, or -inf where row q does not see key k.
  template <class S, class I, class J>
  XF_INLINE S hide(S s, I q, J k) const {
    const auto ahead = k - (q + shift);
    const S hidden(-kInf);
    return select(k < sk, select((ahead >= -left) & (ahead <= right), s, hidden), hidden);
  }

  // Hides scores of a tile in addition to hide(); query(r) is the query of row r, or of column r if
  // the tile is transposed.
  template <bool kTransposed, class Tile, class Query>
  XF_INLINE void hide_in(Tile&, int, int, Query) const {}

  // Returns the end of the keys that row q sees.
  XF_INLINE int seen_up_to(int q) const {
    if (right == kUnbounded) return sk;
    return static_cast<int>(within(static_cast<int64_t>(q) + shift + right + 1, sk));
  }

  // Returns the blocks of Bc keys that rows first_row to last_row see.
  template <int Bc>
  XF_INLINE BlockRange k_blocks(int first_row, int last_row) const {
    const int64_t first = static_cast<int64_t>(first_row) + shift;
    const int64_t last = static_cast<int64_t>(last_row) + shift;
    return blocks<Bc>(
        left == kUnbounded ? 0 : first - left, right == kUnbounded ? sk : last + right + 1,
        left == kUnbounded ? 0 : last - left, right == kUnbounded ? sk : first + right + 1, sk);
  }
  // Returns the blocks of Br rows that see some of the keys first_key to last_key.
  template <int Br>
  XF_INLINE BlockRange q_blocks(int first_key, int last_key) const {
    const int64_t first = static_cast<int64_t>(first_key) - shift;
    const int64_t last = static_cast<int64_t>(last_key) - shift;
    return blocks<Br>(
        right == kUnbounded ? 0 : first - right, left == kUnbounded ? sq : last + left + 1,
        right == kUnbounded ? 0 : last - right, left == kUnbounded ? sq : first + left + 1, sq);
  }

  // Returns one split's share of the keys in [from, to) that a single row sees. It has whole blocks
  // of Bc keys, aligned to Bc.
  XF_INLINE KeyRange keys_of_split(int split, int splits, int Bc, int64_t from = 0,
                                   int64_t to = kUnbounded) const {
    const int64_t first_seen = static_cast<int64_t>(shift) - left;
    const int64_t seen_from =
        within(left == kUnbounded || first_seen < from ? from : first_seen, sk);
    const int64_t last_seen =
        right == kUnbounded ? kUnbounded : static_cast<int64_t>(shift) + right + 1;
    const int64_t end = within(last_seen < to ? last_seen : to, sk);
    const int64_t begin = seen_from < end ? seen_from - seen_from % Bc : end;
    // The division is in 32 bits: one in 64 bits is a loop on GPUs.
    const int blocks = static_cast<int>((end - begin + Bc - 1) / Bc);
    const int64_t share = static_cast<int64_t>((blocks + splits - 1) / splits) * Bc;
    const int64_t first = begin + split * share, last = first + share;
    return {static_cast<int>(first < end ? first : end), static_cast<int>(last < end ? last : end),
            static_cast<int>(seen_from)};
  }
  // Hides, in the block of keys that begins at `key`, those that the row does not see.
  template <template <int, int> class RowTile, int Br, int Bc>
  XF_INLINE void hide_row(RowTile<Br, Bc>& S, const Keys& keys, int key) const {
    const int from = keys.seen_from - key, to = keys.end - key;
    each_row<Br>([&](int r) {
      each_in_row(S, r, 0, [&](auto s, auto k) {
        return select((k >= from) & (k < to), s, decltype(s)(-kInf));
      });
    });
  }

 protected:
  static XF_INLINE int64_t within(int64_t i, int64_t count) {
    return i < 0 ? 0 : (i < count ? i : count);
  }
  // Returns the blocks of N of `count` keys or rows that have some in [seen_from, seen_to). They
  // need no mask if they lie within [all_from, all_to).
  template <int N>
  static XF_INLINE BlockRange blocks(int64_t seen_from, int64_t seen_to, int64_t all_from,
                                     int64_t all_to, int64_t count) {
    const int64_t from = within(seen_from, count), to = within(seen_to, count);
    BlockRange r;
    r.begin = static_cast<int>(from / N);
    r.end = from < to ? static_cast<int>((to + N - 1) / N) : r.begin;  // it may have no page
    r.first = static_cast<int>(from);
    r.last = static_cast<int>(to);
    r.full_begin = static_cast<int>((within(all_from, count) + N - 1) / N);
    r.full_end = static_cast<int>(within(all_to, count) / N);
    return r;
  }
};

}  // namespace xeflash
