// A Mask for sequences that are cut into chunks of equal length, as in the local layers of Llama 4:
// within a Window, a row sees the keys of its own chunk. The first chunk begins at position 0,
// which is that of the first key, but for keys that are a part of a longer sequence.
#pragma once

#include "attention/mask.hpp"

namespace xeflash {

struct Chunks : Window {  // a Mask
  int chunk, first_key;   // positions of a chunk; position of key 0

  XF_INLINE Chunks(const FwdParams& p, const Sequence& seq, int)
      : Window(p, seq), chunk(p.chunk), first_key(seq.k_at) {}

  template <bool kTransposed, template <int, int> class Tile, int R, int C, class Query>
  XF_INLINE void hide_in(Tile<R, C>& S, int row, int column, Query query) const {
    const auto of = [&](bool queries, Ints i) { return queries ? begins_of(query(i) + shift) : i; };
    const Numbers<R> rows([&](Ints r) { return of(!kTransposed, r + row); });
    const Numbers<C> columns([&](Ints c) { return of(kTransposed, c + column); });
    each(S, rows, columns, [&](auto s, auto r, auto c) {
      const auto ahead = kTransposed ? r - c : c - r;
      return select((ahead >= 0) & (ahead < chunk), s, decltype(s)(-kInf));
    });
  }
  template <int Bc>
  XF_INLINE BlockRange k_blocks(int first_row, int last_row) const {
    BlockRange range = Window::k_blocks<Bc>(first_row, last_row);
    range.intersect(together<Bc>(first_row + shift, last_row + shift, 0, sk));
    return range;
  }
  template <int Br>
  XF_INLINE BlockRange q_blocks(int first_key, int last_key) const {
    BlockRange range = Window::q_blocks<Br>(first_key, last_key);
    range.intersect(together<Br>(first_key, last_key, shift, sq));
    return range;
  }
  XF_INLINE KeyRange keys_of_split(int split, int splits, int Bc) const {
    const int64_t begin = begin_of(shift);
    return Window::keys_of_split(split, splits, Bc, begin > 0 ? begin : 0, begin + chunk);
  }

 private:
  // Returns the key at which the chunk of a key begins. Before position 0 there is one chunk, which
  // has no keys.
  XF_INLINE int64_t begin_of(int key) const {
    const int position = key + first_key;
    return static_cast<int64_t>(position < 0 ? -chunk : position - position % chunk) - first_key;
  }
  // Returns begin_of each key, without a division of vectors, which GPUs do not have.
  XF_INLINE Ints begins_of(Ints keys) const {
    const int64_t begin = begin_of(lowest_of(keys));
    const int highest = ~lowest_of(~keys);
    Ints begins(static_cast<int>(begin));
    for (int64_t next = begin + chunk; next <= highest; next += chunk)
      begins = select(keys >= Ints(static_cast<int>(next)), Ints(static_cast<int>(next)), begins);
    return begins;
  }
  // Returns the blocks of N of `count` rows, or keys, that share a chunk with some of the keys
  // `first` to `last`. The first of these rows has the position of key `at`.
  template <int N>
  XF_INLINE BlockRange together(int first, int last, int at, int count) const {
    const int64_t begin = begin_of(first) - at, end = begin_of(last) - at + chunk;
    return blocks<N>(begin, end, end - chunk, begin + chunk, count);
  }
};

}  // namespace xeflash
