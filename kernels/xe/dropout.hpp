// Philox on 16 lanes, lane = key: see attention/dropout.hpp for what is drawn.
#pragma once

#include "xe/mma.hpp"

namespace xeflash::xe {

XF_INLINE u32x16 multiply_high(u32x16 a, uint32_t b) {
  u32x16 low;
  return esimdx::imul(low, a, b);
}

// Zeroes the dropped probabilities of P. A draw serves 8 rows of a key.
template <class T, int R, int C, class Dropout>
XF_INLINE void drop_tile(Left<T, R, C>& P, int row0, int col0, const Dropout& dropout) {
  auto bits = P.x.template bit_cast_view<uint16_t>();
  XF_UNROLL for (int c = 0; c < C / kLanes; ++c) {
    const u32x16 key = lane_index() + (col0 + c * kLanes);
    XF_UNROLL for (int octet = 0; octet < R / 8; ++octet) {
      u32x16 words[4];
      dropout.draw(key, u32x16(static_cast<uint32_t>(row0) / 8 + octet), words);
      XF_UNROLL for (int i = 0; i < 8; ++i) {
        const u32x16 drawn = (words[i / 2] >> (16 * (i % 2))) & 0xffffu;
        auto p = bits.template select<kLanes, 1>((c * R + octet * 8 + i) * kLanes);
        p.merge(simd<uint16_t, kLanes>(0), drawn < dropout.below);
      }
    }
  }
}

}  // namespace xeflash::xe
