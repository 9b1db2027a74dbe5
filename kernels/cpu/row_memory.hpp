// Moves single rows between memory and row tiles, and changes them on the way.
#pragma once

#include "cpu/left.hpp"
#include "cpu/quantised.hpp"
#include "cpu/row_tile.hpp"

namespace xeflash::cpu {

// Reads a row of D elements in vectors of 16 elements as fp32, or of 16 pairs as they are. Elements
// beyond D are 0.
template <class T, int D, bool Pairs = kPaired<T>>
struct RowChunks {
  static constexpr int kWidth = Pairs ? 2 * kLanes : kLanes;
  static constexpr int kFull = D / kWidth, kCount = (D + kWidth - 1) / kWidth;
  static constexpr bool kShort = kFull <= 8;
  using Vec = std::conditional_t<Pairs, u32x16, f32x16>;

  static XF_INLINE Vec load(const T* row, int c) {
    if constexpr (Pairs) {
      return load_as<u32x16>(row + c * kWidth);
    } else {
      return load_widened(row + c * kWidth);
    }
  }
  static XF_INLINE Vec load_tail(const T* row) {
    if constexpr (Pairs) {
      return load_pairs<D>(row, kFull * kLanes);
    } else {
      return load_widened<D % kWidth>(row + kFull * kWidth);
    }
  }
  // Calls f(vector, its number) for all of a row. The loop is unrolled where that keeps the other
  // operand in registers.
  template <class F>
  static XF_INLINE void each(const T* row, F f) {
    if constexpr (kShort) {
      XF_UNROLL for (int c = 0; c < kFull; ++c) f(load(row, c), c);
    } else {
      XF_NO_UNROLL for (int c = 0; c < kFull; ++c) f(load(row, c), c);
    }
    if constexpr (kCount > kFull) f(load_tail(row), kFull);
  }
};

template <class T, int D>
XF_INLINE void load(RowTile<1, D>& x, const Rows<const T>& m) {
  RowChunks<T, D, false>::each(m.row(0), [&](f32x16 v, int c) { x.x[0][c] = v; });
}

// Loads the first `count` values of a row; the others are hidden, as -inf.
template <int C>
XF_INLINE void load_row(RowTile<1, C>& t, const float* x, int count) {
  fill(t, -kInf);
  __builtin_memcpy(t.x, x, (count < C ? count : C) * sizeof(float));
}

// Rotates the pairs of columns among the first `dims` of x, which was loaded from a row: neighbours
// if interleaved, else a column of each half.
template <class T, int D>
XF_INLINE void rotate(RowTile<1, D>& x, const T*, const T* cos, const T* sin, int dims,
                      bool interleaved) {
  auto* columns = reinterpret_cast<float*>(x.x[0]);
  const int half = dims / 2, step = interleaved ? 2 : 1, other = interleaved ? 1 : half;
  for (int i = 0; i < half; ++i) {
    float &a = columns[i * step], &b = columns[i * step + other];
    const float c = to_float(cos[i]), s = to_float(sin[i]), turned = a * c - b * s;
    b = a * s + b * c;
    a = turned;
  }
}

template <int D>
XF_INLINE float abs_max(const RowTile<1, D>& x) {
  f32x16 largest = 0.f;
  XF_UNROLL for (int c = 0; c < (D + kLanes - 1) / kLanes; ++c) {
    largest = max(largest, max(x.x[0][c], -x.x[0][c]));
  }
  return reduce_max(largest);
}

// O += w x for one row x in memory.
template <class T, int D>
XF_INLINE void add_scaled(RowTile<1, D>& O, const T* row, float w) {
  RowChunks<T, D, false>::each(row, [&](f32x16 x, int c) { O.x[0][c] = fma(x, w, O.x[0][c]); });
}

// Stores row r times s to the first row of m.
template <class T, int R, int D>
XF_INLINE void store_row(const Rows<T>& m, const RowTile<R, D>& O, int r, float s) {
  XF_UNROLL for (int c = 0; c < (D + kLanes - 1) / kLanes; ++c) {
    if ((c + 1) * kLanes <= D) {
      store_narrowed(m.row(0) + c * kLanes, O.x[r][c] * s);
    } else {
      store_narrowed<D % kLanes>(m.row(0) + c * kLanes, O.x[r][c] * s);
    }
  }
}

// Writes a row in units of nibbles, and a scale for each unit. Where a value is not finite, the
// scale is not a number.
template <int D>
XF_INLINE void store_nibbles(nibbles* row, f16* scales, const RowTile<1, D>& x) {
  constexpr float kMost = 65504.f;  // of fp16
  for (int unit = 0; unit < D / kUnitColumns; ++unit) {
    const f32x16* v = x.x[0] + unit * kUnitVecs;
    f32x16 most = v[0], least = -v[0], nothing = v[0] * 0.f;
    XF_UNROLL for (int m = 1; m < kUnitVecs; ++m) {
      most = max(most, v[m]);
      least = max(least, -v[m]);
      nothing += v[m] * 0.f;  // NaN if a value is not finite
    }
    const float top = reduce_max(most), bottom = reduce_max(least);
    const float exact = (top >= bottom ? top : -bottom) * -0.125f;
    const float inside = exact > kMost ? kMost : exact < -kMost ? -kMost : exact;
    scales[unit] = static_cast<f16>(inside + reduce_add(nothing));
    const float scale = to_float(scales[unit]);
    u32x16 words = 0;
    XF_UNROLL for (int m = 0; m < kUnitVecs; ++m) {
      f32x16 q = scale == 0.f ? f32x16(0.f) : v[m] / scale;
      q = q < f32x16(7.f) ? q : f32x16(7.f);
      q = (max(q, -8.f) + 12582912.f) - 12582912.f;  // to the nearest integer, ties to even
      words |= __builtin_convertvector(q + 8.f, u32x16) << (4 * m);
    }
    store_as(row + unit * 2 * kLanes, __builtin_convertvector(words, u16x16));
  }
}

}  // namespace xeflash::cpu
