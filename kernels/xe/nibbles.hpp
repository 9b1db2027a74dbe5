// Elements of 4 bits as operands of dpas: packed weights, and rows of V.
#pragma once

#include "xe/quantised.hpp"
#include "xe/tile.hpp"

namespace xeflash::xe {

// The bits that turn a nibble into the number 16 + nibble of type T, exactly: it goes to bit kAt of
// each half of a dword, over kBase, which is a pair of 16. kOne is a pair of 1.
template <class T>
struct Nibbles;
template <>
struct Nibbles<f16> {
  static constexpr int kAt = 6;
  static constexpr uint32_t kMask = 0x03c003c0, kBase = 0x4c004c00, kOne = 0x3c003c00;
};
template <>
struct Nibbles<bf16> {
  static constexpr int kAt = 3;
  static constexpr uint32_t kMask = 0x00780078, kBase = 0x41804180, kOne = 0x3f803f80;
};

// Returns 16 + nibble m of both halves of each dword, as pairs of T.
template <class T, int N>
XF_INLINE simd<T, 2 * N> nibbles_plus_16(simd<uint32_t, N> words, int m) {
  using Bits = Nibbles<T>;
  const int shift = Bits::kAt - 4 * m;
  const simd<uint32_t, N> moved =
      shift >= 0 ? simd<uint32_t, N>(words << shift) : simd<uint32_t, N>(words >> -shift);
  simd<uint32_t, N> pairs = (moved & Bits::kMask) | Bits::kBase;
  return pairs.template bit_cast_view<T>();
}

// ---- O while rows of V in 4 bits are added ------------------------------------------------------

// The sums of P s (16 + nibble), where s are the scales of the unit; column u of `surplus` has the
// sums of P s of unit u. A nibble is q + 8, so O is what is left without 24 times those.
template <int R, int D>
struct NibbleSums {
  static constexpr int kUnits = D / kUnitColumns;
  static_assert(D % kUnitColumns == 0 && kUnits <= kLanes);
  Tile<R, D> O;
  Tile<R, kLanes> surplus;
};
template <int R, int D>
XF_INLINE void fill(NibbleSums<R, D>& sums, float value) {
  fill(sums.O, value);
  fill(sums.surplus, value);
}
template <int R, int D>
XF_INLINE void operator*=(NibbleSums<R, D>& sums, const ColVec<R>& s) {
  sums.O *= s;
  sums.surplus *= s;
}
template <int R, int D>
XF_INLINE Tile<R, D>& settled(NibbleSums<R, D>& sums) {
  XF_UNROLL for (int c = 0; c < sums.O.kChunks; ++c) {
    XF_UNROLL for (int r = 0; r < R; ++r) {
      const float surplus = sums.surplus.x[r * kLanes + c * kLanes / kUnitColumns];
      sums.O.row(r, c) -= surplus * 24.f;
    }
  }
  return sums.O;
}

// Returns a right operand that adds the rows of the left one up in column u, and 0 in others.
template <class T>
XF_INLINE simd<T, 16 * kLanes> ones_in_column(int u) {
  simd<uint32_t, 8 * kLanes> pairs = 0;
  pairs.template select<8, kLanes>(u) = Nibbles<T>::kOne;
  return pairs.template bit_cast_view<T>();
}

// The tile O, or what stands for it while rows of V in elements E are added.
template <class Tile, class E>
struct SumsOf {
  using Type = Tile;
};
template <int R, int D>
struct SumsOf<Tile<R, D>, nibbles> {
  using Type = NibbleSums<R, D>;
};
template <class Tile, class E>
using OutputOf = typename SumsOf<Tile, E>::Type;
template <class Tile>
XF_INLINE Tile& settled(Tile& O) {
  return O;
}

}  // namespace xeflash::xe
