// The random numbers of dropout come from Philox, so that every device, and the backward pass, draw
// the same 16 bits for a probability wherever it is computed.
//   Philox key: the seed, whose upper half is xored with the upper half of the offset
//   counter: (position of the key, position of the row / 8, batch x head, lower half of the offset)
// The row's position % 8 picks one of the 8 half-words drawn. The position of a sequence's first
// row is a multiple of 8.
// Word: drop_tile  zeroes the elements of a tile that dropout drops
#pragma once

#include "attention/work.hpp"
#include "tile/philox.hpp"

namespace xeflash {

struct NoDropout {
  static constexpr float keep_scale = 1.f;
  XF_INLINE NoDropout(const FwdParams&, const Sequence&, int) {}
  template <bool kTransposed = false, class P>
  XF_INLINE void drop(P&, int, int) const {}
};

struct Dropout {
  uint32_t seed[2], plane, offset, below;
  int q_at, k_at;
  float keep_scale;  // the factor of kept probabilities; applied to O at the end

  XF_INLINE Dropout(const FwdParams& p, const Sequence& seq, int head)
      : seed{static_cast<uint32_t>(p.seed),
             static_cast<uint32_t>(p.seed >> 32) ^ static_cast<uint32_t>(p.offset >> 32)},
        plane(static_cast<uint32_t>(seq.batch) * p.all_heads + p.first_head + head),
        offset(static_cast<uint32_t>(p.offset)),
        below(p.drop_below),
        q_at(seq.q_at),
        k_at(seq.k_at),
        keep_scale(p.keep_scale) {}

  // Zeroes the dropped probabilities of a tile whose rows are queries, or keys if it is transposed.
  template <bool kTransposed = false, class P>
  XF_INLINE void drop(P& probabilities, int row, int column) const {
    drop_tile<kTransposed>(probabilities, row + (kTransposed ? k_at : q_at),
                           column + (kTransposed ? q_at : k_at), *this);
  }

  // Draws the 4 words for 8 rows and a key; U is a word or a vector of words.
  template <class U>
  XF_INLINE void draw(U k, U row_octet, U (&c)[4]) const {
    c[0] = k, c[1] = row_octet, c[2] = U(plane), c[3] = U(offset);
    philox(c, seed[0], seed[1]);
  }
};

}  // namespace xeflash
