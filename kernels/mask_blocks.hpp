// Finds the blocks that a mask_mod leaves out, and those in which it hides nothing, for
// attention/listed.hpp. A matrix of scores is never in memory: a work-item evaluates the condition
// on one block, and another one packs 32 results into words.
#pragma once

#include "attention/listed.hpp"

namespace xeflash {

// The blocks of all batches and heads that have some of their own.
struct AllBlocks {
  int rows, keys;  // blocks
  Group::Index of_head;

  XF_INLINE explicit AllBlocks(const FwdParams& p)
      : rows(p.blocks.rows), keys(p.blocks.keys), of_head(static_cast<Group::Index>(rows) * keys) {}
};

// One work-item per block: 0, or 1 if a row sees a key of it, or 3 if all rows see all.
template <class Config>
XF_INLINE void mask_blocks(const ScoreModParams& p) {
  using snippet::Lane, snippet::Of;
  const AllBlocks all(p);
  const Group::Index group = Group::index();
  const int copy = static_cast<int>(group / all.of_head),
            block = static_cast<int>(group % all.of_head);
  const int heads = p.blocks.head ? p.heads_q : 1, batch = copy / heads, head = copy % heads;
  const int first_row = block / all.keys << p.blocks.row_shift,
            first_key = block % all.keys << p.blocks.key_shift;
  const int end_row = at_most(first_row + (1 << p.blocks.row_shift), p.max_q),
            end_key = at_most(first_key + (1 << p.blocks.key_shift), p.max_k);
  const typename Config::Condition condition(p);
  Ints some(0), all_seen(1);
  for (int q = first_row; q < end_row; ++q) {
    for (int k = first_key; k < end_key; k += kLanes) {
      const Lane<int, Of::query, false> q_idx(q);
      const Lane<int, Of::key, true> k_idx(at_most(lane_index() + k, p.max_k - 1));
      const Ints seen = to_ints(snippet::as<bool, true>(condition(batch, head, q_idx, k_idx)));
      some = some | seen;
      all_seen = all_seen & seen;
    }
  }
  const int any = lowest_of(~some) == ~1, every = lowest_of(all_seen) == 1;
  p.blocks.kinds[group] = any ? 1 + 2 * every : 0;
}

// One work-item per word, of which there are as many as the bits of all batches and heads have.
template <class Config>
XF_INLINE void pack_blocks(const ScoreModParams& p) {
  const AllBlocks all(p);
  const int words_of_rows = (all.keys - 1) / 32 + 1, words_of_keys = (all.rows - 1) / 32 + 1;
  const int by_rows = all.rows * words_of_rows, by_keys = all.keys * words_of_keys;
  const Group::Index group = Group::index(), words = 2 * (Group::Index(by_rows) + by_keys);
  const int32_t* kinds = p.blocks.kinds + group / words * all.of_head;
  int at = static_cast<int>(group % words);
  const bool of_keys = at >= 2 * by_rows;
  if (of_keys) at -= 2 * by_rows;
  const int half = of_keys ? by_keys : by_rows, width = of_keys ? words_of_keys : words_of_rows;
  const int kind = at < half ? 1 : 2;
  if (at >= half) at -= half;
  const int own = at / width, first = at % width * 32;
  const int others = of_keys ? all.rows : all.keys, step = of_keys ? all.keys : 1;
  const int32_t* line = kinds + int64_t{own} * (of_keys ? 1 : all.keys);
  uint32_t word = 0;
  for (int i = 0; i < at_most(others - first, 32); ++i) {
    if (line[int64_t{first + i} * step] & kind) word |= 1u << i;
  }
  p.blocks.bits[group] = static_cast<int32_t>(word);
}

}  // namespace xeflash
