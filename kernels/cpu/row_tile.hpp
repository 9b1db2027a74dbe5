// Row tiles of the CPU backend, for few rows: lane = column. Rows of K are read along their
// contiguous dimension, so every byte of the cache streams through the vector unit once; the price
// is a sum across lanes per score.
#pragma once

#include "cpu/operands.hpp"

namespace xeflash::cpu {

// One value per row.
template <int R>
struct RowVec {
  float x[R];
  XF_INLINE RowVec(float value = 0.f) { XF_UNROLL for (int r = 0; r < R; ++r) x[r] = value; }
};
template <int R>
XF_INLINE RowVec<R> max(RowVec<R> a, const RowVec<R>& b) {
  XF_UNROLL for (int r = 0; r < R; ++r) a.x[r] = max(a.x[r], b.x[r]);
  return a;
}
template <int R>
XF_INLINE RowVec<R> operator-(RowVec<R> a, const RowVec<R>& b) {
  XF_UNROLL for (int r = 0; r < R; ++r) a.x[r] -= b.x[r];
  return a;
}
template <int R>
XF_INLINE RowVec<R> operator*(RowVec<R> a, float b) {
  XF_UNROLL for (int r = 0; r < R; ++r) a.x[r] *= b;
  return a;
}
template <int R>
XF_INLINE RowVec<R> exp2(RowVec<R> a) {
  XF_UNROLL for (int r = 0; r < R; ++r) a.x[r] = exp2<5>(f32x16(a.x[r]))[0];
  return a;
}
template <int R>
XF_INLINE bool any_above(const RowVec<R>& a, const RowVec<R>& b, float margin) {
  bool above = false;
  XF_UNROLL for (int r = 0; r < R; ++r) above |= a.x[r] - b.x[r] > margin;
  return above;
}

// Row sums, kept per lane until the end.
template <int R>
struct RowSum {
  f32x16 x[R];
  XF_INLINE RowSum() { XF_UNROLL for (int r = 0; r < R; ++r) x[r] = 0.f; }
};
template <int R>
XF_INLINE void operator*=(RowSum<R>& l, const RowVec<R>& s) {
  XF_UNROLL for (int r = 0; r < R; ++r) l.x[r] *= s.x[r];
}

template <int R, int C>
struct RowTile {
  static constexpr int kVecs = (C + kLanes - 1) / kLanes;
  alignas(64) f32x16 x[R][kVecs];
};
template <int R, int C>
XF_INLINE void fill(RowTile<R, C>& t, float value) {
  XF_UNROLL for (int r = 0; r < R; ++r) {
    XF_UNROLL for (int c = 0; c < (C + kLanes - 1) / kLanes; ++c) t.x[r][c] = value;
  }
}
// f(value, column) along one row; column is a vector.
template <int R, int C, class F>
XF_INLINE void each_in_row(RowTile<R, C>& t, int r, int col0, F f) {
  XF_UNROLL for (int c = 0; c < (C + kLanes - 1) / kLanes; ++c) t.x[r][c] =
      f(t.x[r][c], col0 + c * kLanes + lane_index());
}
// Hides the columns from `count` on.
template <int R, int C>
XF_INLINE void hide_columns(RowTile<R, C>& t, int count) {
  XF_UNROLL for (int r = 0; r < R; ++r) {
    each_in_row(t, r, 0, [&](f32x16 s, i32x16 c) {
      return select(c < i32x16(count), s, f32x16(-__builtin_inff()));
    });
  }
}
template <int R, int C>
XF_INLINE RowVec<R> row_max(const RowTile<R, C>& t) {
  RowVec<R> m;
  XF_UNROLL for (int r = 0; r < R; ++r) {
    f32x16 v = t.x[r][0];
    XF_UNROLL for (int c = 1; c < (C + kLanes - 1) / kLanes; ++c) v = max(v, t.x[r][c]);
    m.x[r] = reduce_max(v);
  }
  return m;
}
// P = 2^(S * scale - m), l += row sums of P. P stays in fp32: nothing is gained by rounding it.
template <int Degree, int R, int C>
XF_INLINE void exp2_and_sum(RowTile<R, C>& P, const RowTile<R, C>& S, float scale,
                            const RowVec<R>& m, RowSum<R>& l) {
  XF_UNROLL for (int r = 0; r < R; ++r) {
    XF_UNROLL for (int c = 0; c < (C + kLanes - 1) / kLanes; ++c) {
      P.x[r][c] = exp2<Degree>(fma(S.x[r][c], scale, f32x16(-m.x[r])));
      l.x[r] += P.x[r][c];
    }
  }
}
template <int R, int C>
XF_INLINE void operator*=(RowTile<R, C>& t, const RowVec<R>& s) {
  XF_UNROLL for (int r = 0; r < R; ++r) {
    XF_UNROLL for (int c = 0; c < (C + kLanes - 1) / kLanes; ++c) t.x[r][c] *= s.x[r];
  }
}

// ---- dot products along rows --------------------------------------------------------------------

// 16 elements of a row as fp32, or 16 pairs as they are; beyond D they read 0.
template <class T, int D>
struct RowChunks {
  static constexpr int kWidth = kPaired<T> ? 2 * kLanes : kLanes;
  static constexpr int kCount = (D + kWidth - 1) / kWidth;
  using Vec = std::conditional_t<kPaired<T>, u32x16, f32x16>;

  static XF_INLINE Vec load(const T* row, int c) {
    if constexpr (kPaired<T>) {
      return load_pairs<D>(row, c * kLanes);
    } else {
      return (c + 1) * kWidth <= D ? load_widened(row + c * kWidth)
                                   : load_widened<D % kWidth>(row + c * kWidth);
    }
  }
};
XF_INLINE f32x16 dot(f32x16 acc, f32x16 a, f32x16 b) {
  return __builtin_elementwise_fma(a, b, acc);
}
XF_INLINE f32x16 dot(f32x16 acc, u32x16 a, u32x16 b) { return dot_pairs(acc, a, b); }

template <class T, int R, int D>
struct RowLeft {
  alignas(64) typename RowChunks<T, D>::Vec x[R][RowChunks<T, D>::kCount];
};
template <class T, int R, int D>
XF_INLINE void load(RowLeft<T, R, D>& A, const Rows<const T>& m) {
  XF_UNROLL for (int r = 0; r < R; ++r) {
    XF_UNROLL for (int c = 0; c < RowChunks<T, D>::kCount; ++c) A.x[r][c] =
        RowChunks<T, D>::load(m.row(r), c);
  }
}

template <class T, int R, int D>
XF_INLINE void negate(RowLeft<T, R, D>& A) {
  for (auto& row : A.x) {
    for (auto& v : row) v = negative(v);
  }
}

// Heads in one pass over a row of K or V: their partial sums share the vector that was loaded.
template <int R>
constexpr int kHeadsPerPass = R >= 4   ? 4
                              : R >= 2 ? 2
                                       : 1;

// 16 scores: Ht rows r0.. of A with 16 / Ht rows of K.
template <int Ht, class T, int R, int N, int D>
XF_INLINE void dot_16(RowTile<R, N>& S, const RowLeft<T, R, D>& A, const Rows<const T>& K, int r0,
                      int key) {
  constexpr int Kt = kLanes / Ht;
  f32x16 sums[kLanes];
  XF_UNROLL for (int k = 0; k < Kt; ++k) {
    const T* row = K.row(key + k);
    f32x16 acc[Ht] = {};
    XF_UNROLL for (int c = 0; c < RowChunks<T, D>::kCount; ++c) {
      const auto v = RowChunks<T, D>::load(row, c);
      XF_UNROLL for (int h = 0; h < Ht; ++h) acc[h] = dot(acc[h], A.x[r0 + h][c], v);
    }
    XF_UNROLL for (int h = 0; h < Ht; ++h) sums[h * Kt + k] = acc[h];
  }
  const f32x16 scores = sum_each(sums);
  XF_UNROLL for (int h = 0; h < Ht; ++h) {
    __builtin_memcpy(reinterpret_cast<float*>(S.x[r0 + h]) + key,
                     reinterpret_cast<const float*>(&scores) + h * Kt, Kt * sizeof(float));
  }
}

// Calls f(Ht, r0) so that the passes cover R rows.
template <int R, int First = 0, class F>
XF_INLINE void each_pass(F f) {
  if constexpr (First < R) {
    constexpr int Ht = kHeadsPerPass<R - First>;
    f(std::integral_constant<int, Ht>{}, First);
    each_pass<R, First + Ht>(f);
  }
}

// S = A K^T for rows of K up to K.count; the rest of S is not meaningful.
template <class T, int R, int N, int D>
XF_INLINE void dot_rows(RowTile<R, N>& S, const RowLeft<T, R, D>& A, const Rows<const T>& K) {
  for (int key = 0; key < N; key += kLanes) {
    each_pass<R>([&](auto heads, int r0) __attribute__((always_inline)) {
      constexpr int Ht = decltype(heads)::value;
      for (int k = 0; k < kLanes; k += kLanes / Ht) dot_16<Ht>(S, A, K, r0, key + k);
    });
  }
}

// O[r0 .. r0 + Ht, vectors c0 .. c0 + Ct) += P V
template <int Ht, int Ct, class T, int R, int N, int D>
XF_INLINE void accumulate_columns(RowTile<R, D>& O, const RowTile<R, N>& P, const Rows<const T>& V,
                                  int r0, int c0) {
  f32x16 acc[Ht][Ct];
  XF_UNROLL for (int h = 0; h < Ht; ++h) {
    XF_UNROLL for (int c = 0; c < Ct; ++c) acc[h][c] = O.x[r0 + h][c0 + c];
  }
  const float* p[Ht];
  XF_UNROLL for (int h = 0; h < Ht; ++h) p[h] = reinterpret_cast<const float*>(P.x[r0 + h]);
  const int keys = V.count < N ? V.count : N;
  for (int k = 0; k < keys; ++k) {
    const T* row = V.data + k * V.stride;
    XF_UNROLL for (int c = 0; c < Ct; ++c) {
      const int col = (c0 + c) * kLanes;
      const f32x16 v =
          col + kLanes <= D ? load_widened(row + col) : load_widened<D % kLanes>(row + col);
      XF_UNROLL for (int h = 0; h < Ht; ++h) acc[h][c] = fma(v, p[h][k], acc[h][c]);
    }
  }
  XF_UNROLL for (int h = 0; h < Ht; ++h) {
    XF_UNROLL for (int c = 0; c < Ct; ++c) O.x[r0 + h][c0 + c] = acc[h][c];
  }
}
template <int Ht, int C0, class T, int R, int N, int D>
XF_INLINE void accumulate_pass(RowTile<R, D>& O, const RowTile<R, N>& P, const Rows<const T>& V,
                               int r0) {
  constexpr int kRegisters = kHasAvx512 ? 16 : 4, kLeft = RowTile<R, D>::kVecs - C0;
  if constexpr (kLeft > 0) {
    constexpr int Ct = kLeft < kRegisters / Ht ? kLeft : kRegisters / Ht;
    accumulate_columns<Ht, Ct>(O, P, V, r0, C0);
    accumulate_pass<Ht, C0 + Ct>(O, P, V, r0);
  }
}

// O += P V for rows of V up to V.count.
template <class T, int R, int N, int D>
XF_INLINE void accumulate_rows(RowTile<R, D>& O, const RowTile<R, N>& P, const Rows<const T>& V) {
  each_pass<R>([&](auto heads, int r0) __attribute__((always_inline)) {
    accumulate_pass<decltype(heads)::value, 0>(O, P, V, r0);
  });
}

// ---- memory -------------------------------------------------------------------------------------

// Asks for rows [first, first + count), as far as they exist.
template <int D, class T>
XF_INLINE void prefetch(const Rows<const T>& m, int first, int count) {
  if (first + count > m.count) count = m.count - first;
  if (m.stride == D) {
    if (count > 0) prefetch_bytes(m.data + first * m.stride, count * D * sizeof(T));
  } else {
    for (int i = 0; i < count; ++i) prefetch_bytes(m.data + (first + i) * m.stride, D * sizeof(T));
  }
}

// O += w x, one row of fp32, padded to whole vectors.
template <int D>
XF_INLINE void add_scaled(RowTile<1, D>& O, const float* x, float w) {
  XF_UNROLL for (int c = 0; c < (D + kLanes - 1) / kLanes; ++c) O.x[0][c] =
      fma(load_as<f32x16>(x + c * kLanes), w, O.x[0][c]);
}

// Row r times s, to memory.
template <class T, int R, int D>
XF_INLINE void store_row(T* row, const RowTile<R, D>& O, int r, float s) {
  XF_UNROLL for (int c = 0; c < (D + kLanes - 1) / kLanes; ++c) {
    if ((c + 1) * kLanes <= D) {
      store_narrowed(row + c * kLanes, O.x[r][c] * s);
    } else {
      store_narrowed<D % kLanes>(row + c * kLanes, O.x[r][c] * s);
    }
  }
}

}  // namespace xeflash::cpu
