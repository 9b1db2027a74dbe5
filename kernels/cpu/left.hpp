// Left operands of the CPU backend's products, packed once with lane = row. bf16 stays bf16, in
// pairs, where the CPU has vdpbf16ps.
#pragma once

#include "cpu/group.hpp"
#include "tile/rows.hpp"

namespace xeflash::cpu {

template <class T>
constexpr bool kPaired = false;
template <>
constexpr bool kPaired<bf16> = kIsa >= Isa::kAvx512Bf16;
template <class T>
constexpr bool kByAmx = kIsa == Isa::kAmxBf16 && std::is_same_v<T, bf16>;

// An R x C left operand: vectors of its columns, or of pairs of its columns in bf16.
template <class T, int R, int C>
struct PackedLeft : Columns<f32x16, R, C> {};
template <class T, int R, int C>
  requires kPaired<T>
struct PackedLeft<T, R, C> : Columns<u32x16, R, round_up(C, kByAmx<T> ? 32 : 2) / 2> {};
template <class T, int R, int C, class Where = InRegisters>
using Left = PackedLeft<T, R, C>;

// The extents of a left operand or of a tile.
template <class P>
constexpr int tile_rows = 0;
template <class P>
constexpr int tile_columns = 0;
template <class T, int R, int C>
constexpr int tile_rows<Left<T, R, C>> = R;
template <class T, int R, int C>
constexpr int tile_columns<Left<T, R, C>> = C;
template <int R, int C>
constexpr int tile_rows<Tile<R, C>> = R;
template <int R, int C>
constexpr int tile_columns<Tile<R, C>> = C;

template <int C, class T>
XF_INLINE u32x16 load_pairs(const T* row, int c) {  // 16 pairs from column 2 c on; beyond C: 0
  u32x16 v = {};
  if (2 * c + 2 * kLanes <= C) {
    v = load_as<u32x16>(row + 2 * c);
  } else {
    __builtin_memcpy(&v, row + 2 * c, (C % (2 * kLanes)) * sizeof(T));
  }
  return v;
}

// Fills t with m. read(row, column) loads a vector of the columns of a row from `column` on;
// vectors of 16 rows are transposed.
template <class V, int R, int C, class Rows, class Read>
XF_INLINE void load_columns(Columns<V, R, C>& t, const Rows& m, Read read) {
  for (int r = 0; r < R / kLanes; ++r) {
    for (int c = 0; c < C; c += kLanes) {
      V v[kLanes];
      XF_UNROLL for (int i = 0; i < kLanes; ++i) v[i] = read(m.row_or_last(r * kLanes + i), c);
      transpose(v);
      XF_UNROLL for (int i = 0; i < kLanes; ++i) {
        if (c + i < C) t.at(c + i, r) = v[i];
      }
    }
  }
}
template <int R, int C, class Rows>
XF_INLINE void load_columns(Columns<f32x16, R, C>& t, const Rows& m) {
  load_columns(t, m, [](const auto* row, int c) __attribute__((always_inline)) {
    return c + kLanes <= C ? load_widened(row + c) : load_widened<C % kLanes>(row + c);
  });
}

// Loads rows with any type of elements. T, the type that they are multiplied with, decides how they
// are kept.
template <class T, int R, int C, class Rows>
XF_INLINE void load(Left<T, R, C>& A, const Rows& m) {
  if constexpr (kPaired<T>) {
    load_columns(A, m, [](const T* row, int c) __attribute__((always_inline)) {
      return load_pairs<C>(row, c);
    });
  } else {
    load_columns(A, m);
  }
}
template <int R, int C>
XF_INLINE void load(Tile<R, C>& t, const Rows<const float>& m) {
  load_columns(t, m);
}

// Turns a tile into a left operand.
template <class T, int R, int C>
XF_INLINE void narrow(Left<T, R, C>& P, const Tile<R, C>& S) {
  for (int r0 = 0; r0 < R / kLanes; r0 += kTogether<R>) {
    for (int c = 0; c < S.cols; c += 2) {
      XF_UNROLL for (int r = 0; r < kTogether<R>; ++r) {
        if constexpr (kPaired<T>) {
          P.at(c / 2, r0 + r) = pack_pairs(S.at(c, r0 + r), S.at(c + 1, r0 + r));
        } else {
          P.at(c, r0 + r) = S.at(c, r0 + r);
          P.at(c + 1, r0 + r) = S.at(c + 1, r0 + r);
        }
      }
    }
  }
}

}  // namespace xeflash::cpu
