// The vocabulary of flash_decode: its loop over the keys, and the keys and values of a thread.
// Word: prefetch_rows  asks for rows that are needed soon
#pragma once

#include "attention/cache.hpp"
#include "attention/partial.hpp"
#include "attention/scores.hpp"

namespace xeflash {

// A thread's loop over the blocks of Bc keys that a single row sees. It has the words of KeyBlocks
// (forward.hpp), but begins blocks at any key that is a multiple of Bc, and knows them by that key.
template <int Bc, class Keys>
struct RowKeyBlocks {
  static constexpr int kStep = Group::turns * Bc;
  const Keys& keys;
  int key;
  XF_INLINE explicit RowKeyBlocks(const Keys& keys)
      : keys(keys), key(keys.next(keys.begin + Group::turn() * Bc, Bc, kStep)) {}
  XF_INLINE bool more() const { return key < keys.end; }
  XF_INLINE void advance() { key = keys.next(key + kStep, Bc, kStep); }
  // These return the first key of the block, and of the next block of this thread.
  XF_INLINE int first() const { return key; }
  XF_INLINE int next() const { return key + kStep; }
};

// The rows of K or V in blocks of Bc rows; a thread reads `Columns` of their columns. A prefetch
// does nothing where the thread brings in no block ahead of time.
template <int Bc, int Columns, class Rows>
struct StreamedRows {
  const Rows rows;
  const bool looks_ahead;
  template <class Blocks>
  XF_INLINE auto at(const Blocks& j) const {
    return block_of<Bc>(rows, j.first());
  }
  template <class Blocks>
  XF_INLINE void prefetch_block(const Blocks& j) const {
    if (looks_ahead) prefetch_rows<Bc, Columns>(at(j));
  }
  template <class Blocks>
  XF_INLINE void prefetch_next(const Blocks& j) const {
    if (looks_ahead) prefetch_rows<Bc, Columns>(block_of<Bc>(rows, j.next()));
  }
};
template <int Bc, int Columns, class Rows>
XF_INLINE StreamedRows<Bc, Columns, Rows> streamed(const Rows& rows, bool looks_ahead) {
  return {rows, looks_ahead};
}

}  // namespace xeflash
