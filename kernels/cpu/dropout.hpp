// Dropout by Philox, 16 lanes at a time: attention/dropout.hpp says which numbers are drawn.
#pragma once

#include "cpu/left.hpp"

namespace xeflash::cpu {

// Returns the upper halves of 16 products. Even and odd lanes are multiplied separately in 64-bit
// lanes, as the hardware does it.
XF_INLINE u32x16 multiply_high(u32x16 a, uint32_t b) {
  using u64x8 = uint64_t __attribute__((ext_vector_type(8)));
  const u64x8 pairs = bit_cast<u64x8>(a);
  const u64x8 even = (pairs & 0xffffffffu) * static_cast<uint64_t>(b);
  const u64x8 odd = (pairs >> 32) * static_cast<uint64_t>(b);
  return bit_cast<u32x16>((even >> 32) | (odd & 0xffffffff00000000u));
}

// Zeroes columns c .. c + 7 of a tile in rows that are not kept; kept[k] is for column c + k.
// Vectors of u32x16 have pairs of columns.
template <class V, int R, int C>
XF_INLINE void keep(Columns<V, R, C>& tile, int c, int r, const i32x16 (&kept)[8]) {
  XF_UNROLL for (int k = 0; k < 8; ++k) {
    if constexpr (std::is_same_v<V, f32x16>) {
      tile.at(c + k, r) = select(kept[k], tile.at(c + k, r), f32x16(0.f));
    } else if (k % 2 == 0) {
      tile.at((c + k) / 2, r) &= bit_cast<u32x16>((kept[k] & 0xffff) | (kept[k + 1] & ~0xffff));
    }
  }
}

// Zeroes the dropped elements of a tile of probabilities, or of their gradients. The tile may be a
// left operand. Rows are queries: a draw serves 8 of them and one key. The lanes draw for 8 keys x
// 2 octets of rows at a time; then each row picks its half-word.
template <bool kTransposed, class P, class Dropout>
  requires(!kTransposed)
XF_INLINE void drop_tile(P& tile, int row0, int col0, const Dropout& dropout) {
  static_assert(tile_columns<P> % 8 == 0);
  const u32x16 lane = bit_cast<u32x16>(lane_index());
  for (int r = 0; r < tile_rows<P> / kLanes; ++r) {
    const uint32_t octet = static_cast<uint32_t>(row0 + r * kLanes) / 8;
    for (int c = 0; c < tile_columns<P>; c += 8) {
      alignas(64) u32x16 words[4];  // words[w], lane 2 k + o: word w for key k, octet o
      dropout.draw(lane / 2 + static_cast<uint32_t>(col0 + c), (lane & 1u) + octet, words);
      const auto* flat = reinterpret_cast<const uint32_t*>(words);
      i32x16 kept[8];
      XF_UNROLL for (int k = 0; k < 8; ++k) {
        u32x16 drawn;  // lane 8 o + i: half i of the draw
        XF_UNROLL for (int i = 0; i < kLanes; ++i) {
          drawn[i] = (flat[(i % 8) / 2 * kLanes + 2 * k + i / 8] >> (16 * (i % 2))) & 0xffffu;
        }
        kept[k] = drawn >= u32x16(dropout.below);
      }
      keep(tile, c, r, kept);
    }
  }
}
// Rows are keys, columns are queries: a lane of a draw is a key, and its 8 half-words are for 8
// columns.
template <bool kTransposed, class P, class Dropout>
  requires kTransposed
XF_INLINE void drop_tile(P& tile, int row0, int col0, const Dropout& dropout) {
  static_assert(tile_columns<P> % 8 == 0);
  for (int r = 0; r < tile_rows<P> / kLanes; ++r) {
    const u32x16 key = bit_cast<u32x16>(row0 + r * kLanes + lane_index());
    for (int c = 0; c < tile_columns<P>; c += 8) {
      u32x16 words[4];
      dropout.draw(key, u32x16(static_cast<uint32_t>(col0 + c) / 8), words);
      i32x16 kept[8];
      XF_UNROLL for (int k = 0; k < 8; ++k) {
        kept[k] = ((words[k / 2] >> (16 * (k % 2))) & 0xffffu) >= u32x16(dropout.below);
      }
      keep(tile, c, r, kept);
    }
  }
}

}  // namespace xeflash::cpu
