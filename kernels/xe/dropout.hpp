// Dropout by Philox: attention/dropout.hpp says which numbers are drawn.
#pragma once

#include "xe/left.hpp"

namespace xeflash::xe {

XF_INLINE uints multiply_high(uints a, uint32_t b) {
  uints low;
  return esimdx::imul(low, a, b);
}

// Zeroes dropped elements among the N columns of one row of a tile of probabilities, or of their
// gradients. The tile may be a left operand.
template <class P, int N>
XF_INLINE void drop_where(P& tile, int row, int column, esimd::simd_mask<N> dropped) {
  using T = typename decltype(tile.x)::element_type;
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  auto bits = tile.x.template bit_cast_view<Bits>();
  auto some = bits.template select<N, 1>(tile.offset(row, column));
  some.merge(simd<Bits, N>(0), dropped);
}

// Rows are queries: a draw serves 8 of them; lane = key.
template <bool kTransposed, class P, class Dropout>
  requires(!kTransposed)
XF_INLINE void drop_tile(P& tile, int row0, int col0, const Dropout& dropout) {
  XF_UNROLL for (int c = 0; c < tile.kC; c += kLanes) {
    const uints key = lane_index() + (col0 + c);
    XF_UNROLL for (int octet = 0; octet < tile.kR / 8; ++octet) {
      uints words[4];
      dropout.draw(key, uints(static_cast<uint32_t>(row0) / 8 + octet), words);
      XF_UNROLL for (int i = 0; i < 8; ++i) {
        const uints drawn = (words[i / 2] >> (16 * (i % 2))) & 0xffffu;
        drop_where(tile, octet * 8 + i, c, lane_mask(drawn < dropout.below));
      }
    }
  }
}
// Rows are keys: a lane of a draw is one of 8 keys and one of kLanes / 8 octets of queries.
template <bool kTransposed, class P, class Dropout>
  requires kTransposed
XF_INLINE void drop_tile(P& tile, int row0, int col0, const Dropout& dropout) {
  constexpr int kOctets = kLanes / 8;
  XF_UNROLL for (int c = 0; c < tile.kC; c += kLanes) {
    const uints octet = lane_index() % kOctets + (col0 + c) / 8;
    XF_UNROLL for (int r = 0; r < tile.kR; r += 8) {
      uints words[4];
      dropout.draw(uints(lane_index() / kOctets + (row0 + r)), octet, words);
      simd<uint32_t, 4 * kLanes> all;
      XF_UNROLL for (int w = 0; w < 4; ++w) all.template select<kLanes, 1>(w * kLanes) = words[w];
      const simd<uint16_t, 8 * kLanes> halves = all.template bit_cast_view<uint16_t>();
      XF_UNROLL for (int k = 0; k < 8; ++k) {
        simd<uint16_t, kLanes> drawn;
        XF_UNROLL for (int o = 0; o < kOctets; ++o) {
          drawn.template select<8, 1>(8 * o) =
              halves.template replicate_vs_w_hs<4, 2 * kLanes, 2, 1>(2 * (kOctets * k + o));
        }
        const uints wide = drawn;
        drop_where(tile, r + k, c, lane_mask(wide < dropout.below));
      }
    }
  }
}

}  // namespace xeflash::xe
