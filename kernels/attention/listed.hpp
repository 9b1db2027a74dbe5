// A Mask for block-sparse attention: within a Window, a row sees keys of the blocks that are listed
// for it, per batch and head. A block is left out, partial (a Condition hides some of its keys) or
// full. Two bits say this for each block of rows and each block of keys; the same bits lie in
// memory by rows, and by keys for gradients of keys and values. A block has 2^shift rows and keys,
// which need not be those of a tile.
#pragma once

#include "attention/lane.hpp"
#include "attention/runs.hpp"

namespace xeflash {

constexpr int kLeastBlock = 16;  // rows and keys

// The Condition of a call that has none.
struct SeesAll {
  XF_INLINE explicit SeesAll(const FwdParams&) {}
};

// The bits of blocks on one side, for `others` of the other side: those of `listed` and `full`, one
// row of words each.
struct ListedUnits {
  const int32_t *listed, *full;
  int words, others, shift;

  XF_INLINE UnitBits of_word(int i) const {
    UnitBits bits{0, ~0u};
    for (int other = 0; other < others; ++other) {
      bits.some |= static_cast<uint32_t>(listed[other * words + i]);
      bits.all &= static_cast<uint32_t>(full[other * words + i]);
    }
    return bits;
  }
};

// The bits of a batch and a head, by one side: a row of words for each of its blocks.
struct BlockBits {
  const int32_t *listed, *full;
  int words, last;  // of a row; the last row

  XF_INLINE BlockBits(const int32_t* data, int own_blocks, int other_blocks)
      : listed(data),
        full(data + own_blocks * ((other_blocks - 1) / 32 + 1)),
        words((other_blocks - 1) / 32 + 1),
        last(own_blocks - 1) {}
  XF_INLINE const int32_t* end() const { return full + (full - listed); }
  // Returns the units of the other side, as blocks `first` to `until` see them.
  XF_INLINE ListedUnits seen_by(int first, int until, int shift) const {
    const int from = at_most(first, last), to = at_most(until, last);
    return {listed + from * words, full + from * words, words, to - from + 1, shift};
  }
};

template <class Condition>
struct Listed : Window {  // a Mask
  using Blocks = BlockRuns<ListedUnits>;
  static constexpr bool kHasCondition = !std::is_same_v<Condition, SeesAll>;
  int row_shift, key_shift;
  BlockBits by_rows, by_keys;
  Condition condition;
  int batch, head;

  XF_INLINE Listed(const FwdParams& p, const Sequence& seq, int head)
      : Window(p, seq),
        row_shift(p.blocks.row_shift),
        key_shift(p.blocks.key_shift),
        by_rows(p.blocks.bits + seq.batch * p.blocks.batch + head * p.blocks.head, p.blocks.rows,
                p.blocks.keys),
        by_keys(by_rows.end(), p.blocks.keys, p.blocks.rows),
        condition(p),
        batch(seq.batch),
        head(head) {}

  // hide_in hides what positions hide, in tiles that have such keys.
  template <class S, class I, class J>
  XF_INLINE S hide(S s, I, J) const {
    return s;
  }

  template <bool kTransposed, template <int, int> class Tile, int R, int C, class Query>
  XF_INLINE void hide_in(Tile<R, C>& S, int row, int column, Query query) const {
    constexpr int kKeys = kTransposed ? R : C, kRows = kTransposed ? C : R;
    const int key = kTransposed ? row : column, first_row = kTransposed ? column : row;
    if (left != kUnbounded || right != kUnbounded || key + kKeys > sk) {
      each(S, row, column, [&](auto s, auto r, auto c) {
        if constexpr (kTransposed) {
          return Window::hide(s, query(c), r);
        } else {
          return Window::hide(s, query(r), c);
        }
      });
    }
    const int block = at_most(key, sk - 1) >> key_shift, rows_block = row_block(query(first_row));
    if (row_block(query(first_row + kRows - 1)) == rows_block &&
        at_most(key + kKeys - 1, sk - 1) >> key_shift == block) {
      const int at = rows_block * by_rows.words + (block >> 5), bit = 1 << (block & 31);
      if (!(by_rows.listed[at] & bit)) return fill(S, -kInf);
      if (!kHasCondition || by_rows.full[at] & bit) return;
    }
    // Tiles begin at multiples of their size: a word of each row has the bits of all their keys.
    static_assert(kKeys <= 16 * kLeastBlock && (kKeys & (kKeys - 1)) == 0);
    const auto of_query = [&](Ints i) {
      const Ints at = row_block(query(i + first_row)) * by_rows.words + (block >> 5);
      const int shift = block & 31;
      return ((value_at(by_rows.listed, at) >> shift) & 0xffff) |
             ((value_at(by_rows.full, at) >> shift) << 16);
    };
    const auto of_key = [&](Ints i) {
      return Ints(1) << ((at_most(i + key, sk - 1) >> key_shift) - block);
    };
    const Numbers<R> of_rows([&](Ints r) { return kTransposed ? of_key(r) : of_query(r); });
    const Numbers<C> of_columns([&](Ints c) { return kTransposed ? of_query(c) : of_key(c); });
    each(S, of_rows, of_columns, row, column, [&](auto s, auto a, auto b, auto r, auto c) {
      if constexpr (kTransposed) {
        return hidden(s, b, a, query(c), r);
      } else {
        return hidden(s, a, b, query(r), c);
      }
    });
  }
  template <int Bc>
  XF_INLINE Blocks k_blocks(int first_row, int last_row) const {
    return {Window::k_blocks<Bc>(first_row, last_row),
            by_rows.seen_by(first_row >> row_shift, last_row >> row_shift, key_shift), Bc};
  }
  template <int Br>
  XF_INLINE Blocks q_blocks(int first_key, int last_key) const {
    return {Window::q_blocks<Br>(first_key, last_key),
            by_keys.seen_by(first_key >> key_shift, last_key >> key_shift, row_shift), Br};
  }

 private:
  template <class I>
  XF_INLINE I row_block(I q) const {
    return at_most(q, sq - 1) >> row_shift;
  }
  // Returns s, or -inf where the bits of row q do not have the bit of key k listed, or have it
  // partial and the condition does not hold.
  template <class S, class A, class B, class I, class J>
  XF_INLINE S hidden(S s, A bits, B bit, I q, J k) const {
    const S none(-kInf);
    if constexpr (!kHasCondition) {
      return select((bits & bit) != 0, s, none);
    } else {
      using snippet::Lane, snippet::Of;
      const Lane<int, Of::query, !std::is_same_v<I, int>> q_idx(at_most(q, sq - 1));
      const Lane<int, Of::key, !std::is_same_v<J, int>> k_idx(at_most(k, sk - 1));
      const Bools seen = snippet::as<bool, true>(condition(batch, head, q_idx, k_idx));
      return select((bits & (bit << 16)) != 0, s,
                    select((bits & bit) != 0, select(seen, s, none), none));
    }
  }
};

}  // namespace xeflash
