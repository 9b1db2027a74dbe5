// Philox, lane = key: see attention/dropout.hpp for what is drawn.
#pragma once

#include "xe/left.hpp"

namespace xeflash::xe {

XF_INLINE uints multiply_high(uints a, uint32_t b) {
  uints low;
  return esimdx::imul(low, a, b);
}

// Zeroes the dropped probabilities of P. A draw serves 8 rows of a key.
template <class T, int R, int C, int Width, class Dropout>
XF_INLINE void drop_tile(Left<T, R, C, Width>& P, int row0, int col0, const Dropout& dropout) {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  auto bits = P.x.template bit_cast_view<Bits>();
  XF_UNROLL for (int c = 0; c < C / kLanes; ++c) {
    const uints key = lane_index() + (col0 + c * kLanes);
    XF_UNROLL for (int octet = 0; octet < R / 8; ++octet) {
      uints words[4];
      dropout.draw(key, uints(static_cast<uint32_t>(row0) / 8 + octet), words);
      XF_UNROLL for (int i = 0; i < 8; ++i) {
        const uints drawn = (words[i / 2] >> (16 * (i % 2))) & 0xffffu;
        auto p = bits.template select<kLanes, 1>(P.offset(octet * 8 + i, c * kLanes));
        p.merge(simd<Bits, kLanes>(0), drawn < dropout.below);
      }
    }
  }
}

}  // namespace xeflash::xe
