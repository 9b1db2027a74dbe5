// A Mask for a sequence that is several documents: within a Window, a row sees the keys of its own
// document. Each position has the id of its document, in any order; the queries are the last
// positions. Of each span of positions the least and the greatest id are known
// (document_spans.hpp), by which blocks are passed over that can have no id of a row.
#pragma once

#include "attention/mask.hpp"

namespace xeflash {

// Ids from the least to the greatest of some positions.
struct IdRange {
  int least, greatest;
  XF_INLINE bool is_one() const { return least == greatest; }
  XF_INLINE bool meets(const IdRange& other) const {
    return least <= other.greatest && other.least <= greatest;
  }
};

// The ids of a sequence.
struct DocumentIds {
  const int32_t *of_positions, *least, *greatest;  // the latter of spans
  int count;                                       // positions

  XF_INLINE DocumentIds(const DocumentsArg& arg, const Sequence& seq)
      : of_positions(arg.ids + seq.batch * arg.batch),
        least(arg.least + seq.batch * arg.batch_spans),
        greatest(arg.greatest + seq.batch * arg.batch_spans),
        count(seq.sk) {}

  // Of a position or several; beyond the end they are the last one's.
  template <class I>
  XF_INLINE auto at(I position) const {
    return value_at(of_positions, at_most(position, count - 1));
  }
  // Of the spans that positions first to last lie in, as far as these are there.
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
  // The first position at or after one, as far as spans tell, that may have one of these ids; or
  // the end.
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

// Blocks of `size` positions, the first of which begins `at`.
struct DocumentBlocks : private BlockRange {
  DocumentIds ids;
  IdRange rows;  // of those that see some of the blocks
  int size, at;

  XF_INLINE DocumentBlocks(const BlockRange& range, const DocumentIds& ids, const IdRange& rows,
                           int size, int at)
      : BlockRange(range), ids(ids), rows(rows), size(size), at(at) {}
  using BlockRange::begin, BlockRange::end, BlockRange::first, BlockRange::last;
  using BlockRange::have_none_full, BlockRange::is_empty;

  XF_INLINE int next(int j, int step) const {
    while (j < end) {
      const int position = ids.next(rows, at + j * size);
      if (position >= ids.count) return end;
      const int blocks = (position - at) / size - j;
      if (blocks == 0) break;
      j += (blocks + step - 1) / step * step;
    }
    return j;
  }
  XF_INLINE bool has(int j) const { return BlockRange::has(j) && rows.meets(of_block(j)); }
  XF_INLINE DocumentBlocks only(int j) const {
    return {BlockRange::only(has(j) ? j : end), ids, rows, size, at};
  }
  XF_INLINE bool is_full(int j) const {
    if (!BlockRange::is_full(j) || !rows.is_one()) return false;
    const IdRange block = of_block(j);
    return block.is_one() && block.least == rows.least;
  }

 private:
  XF_INLINE IdRange of_block(int j) const {
    return ids.between(at + j * size, at + j * size + size - 1);
  }
};

// The keys that one query sees.
struct DocumentKeys : private KeyRange {
  DocumentIds ids;
  IdRange row;

  XF_INLINE DocumentKeys(const KeyRange& range, const DocumentIds& ids, const IdRange& row)
      : KeyRange(range), ids(ids), row(row) {}
  using KeyRange::begin, KeyRange::end, KeyRange::seen_from;

  XF_INLINE int next(int key, int Bc) const {
    const int found = ids.next(row, key);
    return found < end ? found - found % Bc : end;
  }
  XF_INLINE bool is_full(int key, int Bc) const {
    if (!KeyRange::is_full(key, Bc)) return false;
    const IdRange block = ids.between(key, key + Bc - 1);
    return block.is_one() && block.least == row.least;
  }
};

struct Documents : Window {  // a Mask
  using Blocks = DocumentBlocks;
  using Keys = DocumentKeys;
  DocumentIds ids;

  XF_INLINE Documents(const FwdParams& p, const Sequence& seq)
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
    return {Window::k_blocks<Bc>(first_row, last_row), ids,
            ids.between(first_row + shift, last_row + shift), Bc, 0};
  }
  template <int Br>
  XF_INLINE Blocks q_blocks(int first_key, int last_key) const {
    return {Window::q_blocks<Br>(first_key, last_key), ids, ids.between(first_key, last_key), Br,
            shift};
  }

  XF_INLINE Keys keys_of_split(int split, int splits, int Bc) const {
    const int id = ids.of_positions[shift];
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
