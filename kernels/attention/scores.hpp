// Turns the products of queries and keys into scores for the softmax: a variant scales and changes
// them, and a mask hides some.
// Word: columns_seen  says which columns of a block some rows need
#pragma once

#include "attention/mask_contract.hpp"
#include "attention/variant.hpp"

namespace xeflash {

// The scores of the rows of a tile. In block j of keys, this thread scores the keys from `key` on.
template <class Config>
struct Scores {
  using Mask = typename Config::Mask;
  using Variant = typename Config::ScoreVariant;
  const Mask& mask;
  const typename Mask::Blocks& range;
  const Variant variant;
  const float scale;

  XF_INLINE Scores(const FwdParams& p, const Sequence& seq, int head, const Mask& mask,
                   const typename Mask::Blocks& range)
      : mask(mask), range(range), variant(p, seq, head), scale(p.scale) {}

  // Returns how many columns of block j each set of rows sees, so that products can leave out the
  // columns that no row sees.
  template <int Br, class OwnRows>
  XF_INLINE auto seen(const OwnRows& rows, int j, int key) const {
    return columns_seen<Br>(rows.row, [&](int row) {
      return range.is_full(j) ? kAllColumns : mask.seen_up_to(rows.query(row)) - key;
    });
  }

  template <class Tile, class OwnRows>
  XF_INLINE void change(Tile& S, const OwnRows& rows, int j, int key) const {
    if constexpr (!Variant::kIdentity) {
      each(S, rows.row, key,
           [&](auto s, auto q, auto k) { return variant.score(s * scale, rows.query(q), k); });
    }
    if (!range.is_full(j)) {
      each(S, rows.row, key,
           [&](auto s, auto q, auto k) { return mask.hide(s, rows.query(q), k); });
      mask.template hide_in<false>(S, rows.row, key, [&](auto q) { return rows.query(q); });
    }
  }
};

// The scores of one query: row r of a tile is head `head` + r.
template <class Config>
struct RowScores {
  using Mask = typename Config::Mask;
  using Variant = typename Config::ScoreVariant;
  const FwdParams& p;
  const Sequence& seq;
  const Mask& mask;
  const typename Mask::Keys& keys;
  int head, heads;

  template <template <int, int> class RowTile, int Br, int Bc>
  XF_INLINE void change(RowTile<Br, Bc>& S, int key) const {
    if constexpr (!Variant::kIdentity) {
      each_row<Br>([&](int r) {
        const Variant variant(p, seq, head + (r < heads ? r : 0));
        each_in_row(S, r, key, [&](auto s, auto k) { return variant.score(s * p.scale, 0, k); });
      });
    }
    if (!keys.is_full(key, Bc)) mask.hide_row(S, keys, key);
  }
};

}  // namespace xeflash
