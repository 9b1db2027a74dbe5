// A Mask for trees of guesses: the last sq keys of a sequence are those of its rows, which are the
// nodes of a tree. A row sees all keys before these, and the keys of its ancestors and its own. It
// has a bit for each node, in words of kWord. Only blocks that hold keys of nodes are masked.
#pragma once

#include "attention/mask.hpp"

namespace xeflash {

struct Tree : Window {  // a Mask
  const int32_t* words;
  int words_of_row;

  XF_INLINE Tree(const FwdParams& p, const Sequence& seq, int)
      : Window(p, seq),
        words(p.tree.words + seq.batch * p.tree.batch +
              (p.tree.of_packed_rows ? seq.q0 * p.tree.words_of_row : 0)),
        words_of_row(p.tree.words_of_row) {}

  // There is no window, and hide_in hides the keys beyond the last node's.
  template <class S, class I, class J>
  XF_INLINE S hide(S s, I, J) const {
    return s;
  }

  template <bool kTransposed, template <int, int> class Tile, int R, int C, class Query>
  XF_INLINE void hide_in(Tile<R, C>& S, int row, int column, Query query) const {
    static_assert(!kTransposed, "caches have no gradients");
    XF_UNROLL for (int begin = 0; begin < C; begin += kWord) {
      const int first = column + begin - shift;
      const Ints beyond(beyond_last(first));
      const Numbers<R> hidden([&](Ints r) { return hidden_from(first, query(r + row)) | beyond; });
      const Numbers<C> bits([&](Ints c) {
        const Ints bit = Ints(1) << (c & (kWord - 1));
        return C <= kWord ? bit : select((c >= begin) & (c < begin + kWord), bit, Ints(0));
      });
      each(S, hidden, bits,
           [](auto s, auto a, auto b) { return select((a & b) == 0, s, decltype(s)(-kInf)); });
    }
  }
  template <int Bc>
  XF_INLINE BlockRange k_blocks(int first_row, int last_row) const {
    BlockRange range = Window::k_blocks<Bc>(first_row, last_row);
    range.full_end = at_most(range.full_end, larger(shift, 0) / Bc);
    return range;
  }

 private:
  // Returns which of kWord nodes, from node `first` on, are beyond the last one.
  XF_INLINE int beyond_last(int first) const {
    const int nodes = sq - first;
    return nodes >= kWord ? 0 : static_cast<int>(~0u << larger(nodes, 0));
  }
  // Returns which of kWord nodes, from node `first` on, rows do not see; none of those below 0.
  XF_INLINE Ints hidden_from(int first, Ints row) const {
    const int word = first >> 5, bit = first & (kWord - 1);
    const Ints low = hidden_of(word, row) >> bit, high = hidden_of(word + 1, row);
    if (bit == 0) return low;
    const auto kept = static_cast<int>((1u << (kWord - bit)) - 1);  // the shift repeats the sign
    return (low & kept) | (high << (kWord - bit));
  }
  XF_INLINE Ints hidden_of(int word, Ints row) const {
    if (word < 0 || word >= words_of_row) return Ints(0);
    return ~value_at(words, at_most(row, sq - 1) * words_of_row + word);
  }
};

}  // namespace xeflash
