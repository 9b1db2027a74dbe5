// A Mask for sparse attention: within a Window, a row sees the keys that are picked for it, the
// same for all heads. Each row has a bit for each key. Of a span of kSpan rows, a word tells for
// each kWord keys whether a row of the span has picked one of them: blocks that have none are
// skipped.
#pragma once

#include "attention/mask.hpp"

namespace xeflash {

// The words of a sequence. The spans' are a matrix: a row of it for each span, an entry for each
// kWord keys.
struct PickedKeys {
  const int32_t *row_words, *span_words;
  int words;  // of a row

  XF_INLINE PickedKeys(const PicksArg& arg, const Sequence& seq)
      : row_words(arg.rows + seq.batch * arg.batch),
        span_words(arg.spans + seq.batch * arg.batch_spans),
        words((seq.sk - 1) / kWord + 1) {}
};

// Blocks of `size` keys, or of rows. An entry of the spans' matrix covers `unit` of these keys or
// rows. A block is visited if an entry of it is not 0 for any of the `others`, which are the spans
// of rows, or the words of keys, on the other side.
struct PickedBlocks : private BlockRange {
  const int32_t* entries;  // the first of the others at position 0
  int step, other_step, others, unit, size, count;

  XF_INLINE PickedBlocks(const BlockRange& range, const int32_t* entries, int step, int other_step,
                         int others, int unit, int size, int count)
      : BlockRange(range),
        entries(entries),
        step(step),
        other_step(other_step),
        others(others),
        unit(unit),
        size(size),
        count(count) {
    have_none_full();
  }
  using BlockRange::begin, BlockRange::end, BlockRange::first, BlockRange::last;
  using BlockRange::have_none_full, BlockRange::is_empty, BlockRange::is_full,
      BlockRange::keep_share;

  XF_INLINE int next(int j, int stride) const {
    while (j < end) {
      const int position = next_picked(j * size);
      if (position >= count) return end;
      const int blocks = position / size - j;
      if (blocks <= 0) break;
      j += (blocks + stride - 1) / stride * stride;
    }
    return j;
  }
  XF_INLINE bool has(int j) const {
    return BlockRange::has(j) && next_picked(j * size) < (j + 1) * size;
  }
  XF_INLINE PickedBlocks only(int j) const {
    PickedBlocks one = *this;
    static_cast<BlockRange&>(one) = BlockRange::only(has(j) ? j : end);
    return one;
  }

 private:
  // Returns the first position from `position` on that has an entry; the end if there is none.
  XF_INLINE int next_picked(int position) const {
    const int last = (count - 1) / unit;
    for (int i = position / unit; i <= last; i += kLanes) {
      const Ints each = lane_index() + i, here = at_most(each, last) * step;
      Ints all(0);
      for (int other = 0; other < others; ++other)
        all = all | value_at(entries, here + other * other_step);
      const int found = lowest_of(select(all != 0, each, Ints(last + 1)));
      if (found <= last) return larger(position, found * unit);
    }
    return count;
  }
};

// The keys that a single query sees.
struct KeysOfRow : private KeyRange {
  PickedBlocks blocks;  // of kWord keys
  XF_INLINE KeysOfRow(const KeyRange& range, const PickedBlocks& blocks)
      : KeyRange(range), blocks(blocks) {}
  using KeyRange::begin, KeyRange::end, KeyRange::seen_from;

  XF_INLINE int next(int key, int Bc, int stride) const {
    while (key < end) {
      const int word = blocks.next(key / kWord, 1);
      if (word >= blocks.end) return end;
      const int ahead = (larger(key, word * kWord) - key) / Bc;
      if (ahead == 0) break;
      key += (ahead * Bc + stride - 1) / stride * stride;
    }
    return key;
  }
  XF_INLINE bool is_full(int, int) const { return false; }
};

struct Picks : Window {  // a Mask
  using Blocks = PickedBlocks;
  using Keys = KeysOfRow;
  PickedKeys picked;

  XF_INLINE Picks(const FwdParams& p, const Sequence& seq, int)
      : Window(p, seq), picked(p.picks, seq) {}

  // Returns s, or -inf where the bit of the key is not in the word of the row.
  template <class S, class A, class B>
  static XF_INLINE S hide_unpicked(S s, A word, B bit) {
    return select((word & bit) != 0, s, S(-kInf));
  }

  template <bool kTransposed, template <int, int> class Tile, int R, int C, class Query>
  XF_INLINE void hide_in(Tile<R, C>& S, int row, int column, Query query) const {
    constexpr int kKeys = kTransposed ? R : C;
    const int key = kTransposed ? row : column, first = kTransposed ? column : row;
    if constexpr (kKeys <= kWord && kWord % kKeys == 0) {  // they have one word of a row
      const auto of = [&](bool queries, Ints i) {
        if (!queries) return Ints(1) << ((i + key) & (kWord - 1));
        return value_at(picked.row_words, row_at(query(i + first)) * picked.words + key / kWord);
      };
      const Numbers<R> rows([&](Ints r) { return of(!kTransposed, r); });
      const Numbers<C> columns([&](Ints c) { return of(kTransposed, c); });
      each(S, rows, columns, [](auto s, auto a, auto b) { return hide_unpicked(s, a, b); });
    } else {
      const auto hide_one = [&](auto s, Ints q, Ints k) {
        const Ints at = row_at(query(q)) * picked.words + (at_most(k, sk - 1) >> 5);
        return hide_unpicked(s, value_at(picked.row_words, at), Ints(1) << (k & (kWord - 1)));
      };
      each(S, row, column, [&](auto s, auto r, auto c) {
        if constexpr (kTransposed) {
          return hide_one(s, Ints(c), Ints(r));
        } else {
          return hide_one(s, Ints(r), Ints(c));
        }
      });
    }
  }
  template <int Bc>
  XF_INLINE Blocks k_blocks(int first_row, int last_row) const {
    const int first = span_of(first_row);
    return {Window::k_blocks<Bc>(first_row, last_row),
            picked.span_words + first * picked.words,
            1,
            picked.words,
            span_of(last_row) - first + 1,
            kWord,
            Bc,
            sk};
  }
  template <int Br>
  XF_INLINE Blocks q_blocks(int first_key, int last_key) const {
    const int first = at_most(first_key, sk - 1) / kWord;
    return {Window::q_blocks<Br>(first_key, last_key),
            picked.span_words + first,
            picked.words,
            1,
            at_most(last_key, sk - 1) / kWord - first + 1,
            kSpan,
            Br,
            sq};
  }
  XF_INLINE Keys keys_of_split(int split, int splits, int Bc) const {
    return {Window::keys_of_split(split, splits, Bc), k_blocks<kWord>(0, 0)};
  }
  template <template <int, int> class RowTile, int Br, int Bc>
  XF_INLINE void hide_row(RowTile<Br, Bc>& S, const Keys& keys, int key) const {
    each_row<Br>([&](int r) {
      each_in_row(S, r, key, [&](auto s, auto k) {
        const Ints at(k);
        const Ints word = value_at(picked.row_words, at_most(at, sk - 1) >> 5);
        return hide_unpicked(hide(s, 0, k), word, Ints(1) << (at & (kWord - 1)));
      });
    });
  }

 private:
  XF_INLINE int span_of(int row) const { return at_most(row, sq - 1) / kSpan; }
  XF_INLINE Ints row_at(Ints row) const { return at_most(row, sq - 1); }
};

}  // namespace xeflash
