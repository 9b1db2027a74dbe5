// A Mask for a sequence of several documents: within a Window, a row sees the keys of its own
// document. Each position has the id of its document; ids need not be sorted. The queries are the
// last positions: query q is at q + shift. The least and the greatest id of each span of positions
// are known (document_spans.hpp): a block whose ids cannot match those of the rows is skipped.
// Word: bits_of  returns one bit per lane of a comparison
#pragma once

#include <bit>

#include "attention/runs.hpp"

namespace xeflash {

// The range of the ids of some positions.
struct IdRange {
  int least, greatest;
  XF_INLINE bool is_one() const { return least == greatest; }
  XF_INLINE bool meets(const IdRange& other) const {
    return least <= other.greatest && other.least <= greatest;
  }
};

// The document ids of a sequence.
struct DocumentIds {
  const int32_t *by_position, *least, *greatest;  // per position; per span; per span
  int count;                                      // of positions

  XF_INLINE DocumentIds(const DocumentsArg& arg, const Sequence& seq)
      : by_position(arg.ids + seq.batch * arg.batch),
        least(arg.least + seq.batch * arg.batch_spans),
        greatest(arg.greatest + seq.batch * arg.batch_spans),
        count(seq.sk) {}

  // Returns the ids of one or several positions; past the end, the id of the last position.
  template <class I>
  XF_INLINE auto at(I position) const {
    return value_at(by_position, at_most(position, count - 1));
  }
  // Returns the range of the ids in the spans that hold positions `first` to `last`, up to the end.
  XF_INLINE IdRange between(int first, int last) const {
    int span = at_most(first, count - 1) / kSpan;
    const int end = at_most(last, count - 1) / kSpan;
    IdRange all{least[span], greatest[span]};
    while (++span <= end) {
      all.least = at_most(all.least, least[span]);
      all.greatest = larger(all.greatest, greatest[span]);
    }
    return all;
  }
  // Returns the first position from `position` on that may have one of these ids, judged by spans;
  // the end if there is none.
  XF_INLINE int next(const IdRange& ids, int position) const {
    const int end = (count - 1) / kSpan + 1;
    for (int span = position / kSpan; span < end; span += kLanes) {
      const auto each = lane_index() + span, here = at_most(each, end - 1);
      const auto meets =
          (value_at(least, here) <= ids.greatest) & (value_at(greatest, here) >= ids.least);
      const int found = lowest_of(select(meets, each, Ints(end)));
      if (found < end) return larger(position, found * kSpan);
    }
    return count;
  }
};

// The spans as units of tiles (runs.hpp), for rows, or keys, with these ids. Rows see all keys of a
// span if both have one id, the same.
struct DocumentUnits {
  static constexpr int shift = std::countr_zero(static_cast<unsigned>(kSpan));
  DocumentIds ids;
  IdRange others;

  XF_INLINE UnitBits of_word(int i) const {
    UnitBits bits{0, 0};
    const int last = (ids.count - 1) / kSpan;
    XF_UNROLL for (int first = 0; first < 32; first += kLanes) {
      const Ints span = lane_index() + (32 * i + first), here = at_most(span, last);
      const Ints least = value_at(ids.least, here), greatest = value_at(ids.greatest, here);
      const auto is_there = span <= last;
      const auto meets = (least <= others.greatest) & (greatest >= others.least) & is_there;
      bits.some |= bits_of(meets) << first;
      const auto is_same = (least == others.greatest) & (greatest == others.least);
      bits.all |= bits_of(is_same & is_there) << first;
    }
    return bits;
  }
};

// The keys that a single query sees.
struct DocumentKeys : private KeyRange {
  DocumentIds ids;
  IdRange row;

  XF_INLINE DocumentKeys(const KeyRange& range, const DocumentIds& ids, const IdRange& row)
      : KeyRange(range), ids(ids), row(row) {}
  using KeyRange::begin, KeyRange::end, KeyRange::seen_from;

  XF_INLINE int next(int key, int Bc, int step) const {
    while (key < end) {
      const int found = ids.next(row, key);
      if (found >= end) return end;
      const int blocks = (found - key) / Bc;
      if (blocks == 0) break;
      key += (blocks * Bc + step - 1) / step * step;
    }
    return key;
  }
  XF_INLINE bool is_full(int key, int Bc) const {
    if (!KeyRange::is_full(key, Bc)) return false;
    const IdRange block = ids.between(key, key + Bc - 1);
    return block.is_one() && block.least == row.least;
  }
};

struct Documents : Window {  // a Mask
  using Blocks = BlockRuns<DocumentUnits>;
  using Keys = DocumentKeys;
  DocumentIds ids;

  XF_INLINE Documents(const FwdParams& p, const Sequence& seq, int)
      : Window(p, seq), ids(p.documents, seq) {}

  template <bool kTransposed, template <int, int> class Tile, int R, int C, class Query>
  XF_INLINE void hide_in(Tile<R, C>& S, int row, int column, Query query) const {
    const auto of = [&](bool queries, Ints i) { return ids.at(queries ? query(i) + shift : i); };
    const Numbers<R> rows([&](Ints r) { return of(!kTransposed, r + row); });
    const Numbers<C> columns([&](Ints c) { return of(kTransposed, c + column); });
    each(S, rows, columns,
         [](auto s, auto a, auto b) { return select(a == b, s, decltype(s)(-kInf)); });
  }
  template <int Bc>
  XF_INLINE Blocks k_blocks(int first_row, int last_row) const {
    return {Window::k_blocks<Bc>(first_row, last_row),
            {ids, ids.between(first_row + shift, last_row + shift)},
            Bc};
  }
  template <int Br>
  XF_INLINE Blocks q_blocks(int first_key, int last_key) const {
    return {Window::q_blocks<Br>(first_key, last_key),
            {ids, ids.between(first_key, last_key)},
            Br,
            shift};
  }

  XF_INLINE Keys keys_of_split(int split, int splits, int Bc) const {
    const int id = ids.by_position[shift];
    const IdRange row{id, id};
    return {Window::keys_of_split(split, splits, Bc, ids.next(row, 0)), ids, row};
  }
  template <template <int, int> class RowTile, int Br, int Bc>
  XF_INLINE void hide_row(RowTile<Br, Bc>& S, const Keys& keys, int key) const {
    each_row<Br>([&](int r) {
      each_in_row(S, r, key, [&](auto s, auto k) {
        return select(ids.at(k) == keys.row.least, hide(s, 0, k), decltype(s)(-kInf));
      });
    });
  }
};

}  // namespace xeflash
