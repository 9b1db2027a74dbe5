// Products of the CPU backend for few rows. Rows of K are read along their contiguous dimension, so
// every byte of the cache streams through the vector unit once; the price is a sum across lanes per
// score.
#pragma once

#include "cpu/row_memory.hpp"

namespace xeflash::cpu {

XF_INLINE f32x16 dot(f32x16 acc, f32x16 a, f32x16 b) {
  return __builtin_elementwise_fma(a, b, acc);
}
XF_INLINE f32x16 dot(f32x16 acc, u32x16 a, u32x16 b) { return dot_pairs(acc, a, b); }

template <class T, int R, int D, class E = T>
struct RowOperand {
  alignas(64) typename RowChunks<T, D>::Vec x[R][RowChunks<T, D>::kCount];
};
template <class T, int R, int D, int N, class E>
using RowLeft = RowOperand<T, R, D, E>;
// Loads rows with elements of any type E. T, the type of K, decides how they are kept.
template <class T, int R, int D, class E>
XF_INLINE void load(RowOperand<T, R, D>& A, const Rows<const E>& m) {
  XF_NO_UNROLL for (int r = 0; r < R; ++r) {
    RowChunks<E, D, kPaired<T>>::each(m.row_or_last(r), [&](auto v, int c) { A.x[r][c] = v; });
  }
}

// Number of heads in one pass over a row of K or V: they share each vector that is loaded.
template <int R>
constexpr int kHeadsPerPass = R >= 4   ? 4
                              : R >= 2 ? 2
                                       : 1;

// Computes 16 scores: Ht rows of A, from r0 on, by 16 / Ht rows of K, from `key` on.
template <int Ht, class T, int R, int N, int D, class M>
XF_INLINE void dot_16(RowTile<R, N>& S, const RowOperand<T, R, D>& A, const M& K, int r0, int key) {
  constexpr int Kt = kLanes / Ht;
  f32x16 sums[kLanes];
  auto sum_row = [&](int k) __attribute__((always_inline)) {
    f32x16 acc[Ht] = {};
    RowChunks<T, D>::each(
        K.row_or_last(key + k), [&](auto v, int c) __attribute__((always_inline)) {
          XF_UNROLL for (int h = 0; h < Ht; ++h) acc[h] = dot(acc[h], A.x[r0 + h][c], v);
        });
    XF_UNROLL for (int h = 0; h < Ht; ++h) sums[h * Kt + k] = acc[h];
  };
  if constexpr (RowChunks<T, D>::kShort) {
    XF_UNROLL for (int k = 0; k < Kt; ++k) sum_row(k);
  } else {
    XF_NO_UNROLL for (int k = 0; k < Kt; ++k) sum_row(k);
  }
  const f32x16 scores = sum_each(sums);
  XF_UNROLL for (int h = 0; h < Ht; ++h) {
    __builtin_memcpy(reinterpret_cast<float*>(S.x[r0 + h]) + key,
                     reinterpret_cast<const float*>(&scores) + h * Kt, Kt * sizeof(float));
  }
}

// Calls f(Ht, r0) for passes of Ht rows that together cover R rows.
template <int R, class F>
XF_INLINE void each_pass(F f) {
  constexpr int Ht = kHeadsPerPass<R>;
  XF_NO_UNROLL for (int r0 = 0; r0 + Ht <= R; r0 += Ht) f(std::integral_constant<int, Ht>{}, r0);
  if constexpr (R % Ht) {
    each_pass<R % Ht>([&](auto heads, int r0)
                          __attribute__((always_inline)) { f(heads, R - R % Ht + r0); });
  }
}

// Returns the factors of 16 rows of a block, from row `key` on.
template <class M>
XF_INLINE f32x16 scales_of(const M& m, int key) {
  f32x16 scales;
  XF_UNROLL for (int i = 0; i < kLanes; ++i) scales[i] = m.scale(key + i);
  return scales;
}

// Asks for N rows, as far as they exist. Rows that lie side by side come into L1. The rows of one
// head among others, which are often a power of two apart, come only into L2: they would fall into
// a few sets of L1 and evict each other.
template <int N, int D, class M>
XF_INLINE void prefetch_rows(const M& m) {
  const int count = m.size() < N ? m.size() : N;
  for (int i = 0; i < count; ++i) {
    const auto* row = m.row(i);
    constexpr int kColumns = kPerElement<std::remove_cvref_t<decltype(*row)>>;
    prefetch<false>(row, D / kColumns * static_cast<int64_t>(sizeof(*row)));
  }
}
template <int N, int D, class T>
XF_INLINE void prefetch_rows(const Rows<const T>& m) {
  const int count = m.size() < N ? m.size() : N;
  if (m.stride == D) {
    prefetch<true>(m.row(0), count * D * static_cast<int64_t>(sizeof(T)));
  } else {
    for (int i = 0; i < count; ++i) prefetch<false>(m.row(i), D * sizeof(T));
  }
}

// S = A K^T for the rows of K up to K.count, which may lie anywhere; the rest of S is meaningless.
template <class T, int R, int N, int D, class M>
XF_INLINE void dot_rows(RowTile<R, N>& S, const RowOperand<T, R, D>& A, const M& K) {
  for (int key = 0; key < N; key += kLanes) {
    each_pass<R>([&](auto heads, int r0) __attribute__((always_inline)) {
      constexpr int Ht = decltype(heads)::value;
      for (int k = 0; k < kLanes; k += kLanes / Ht) dot_16<Ht>(S, A, K, r0, key + k);
    });
  }
  if constexpr (kScaled<M>) {
    for (int key = 0; key < N; key += kLanes) {
      const f32x16 scales = scales_of(K, key);
      XF_NO_UNROLL for (int r = 0; r < R; ++r) S.x[r][key / kLanes] *= scales;
    }
  }
}

// O[r0 .. r0 + Ht, vectors c0 .. c0 + Ct) += P V; the last vector has Last elements.
template <int Ht, int Ct, int Last, int R, int N, int D, class M>
XF_INLINE void accumulate_columns(RowTile<R, D>& O, const RowTile<R, N>& P, const M& V, int r0,
                                  int c0) {
  f32x16 acc[Ht][Ct] = {};
  const float* p[Ht];
  XF_UNROLL for (int h = 0; h < Ht; ++h) p[h] = reinterpret_cast<const float*>(P.x[r0 + h]);
  const int keys = V.size() < N ? V.size() : N;
  for (int k = 0; k < keys; ++k) {
    const auto* row = V.row(k) + c0 * kLanes;
    XF_UNROLL for (int c = 0; c < Ct; ++c) {
      const auto* x = row + c * kLanes;
      const f32x16 v = c + 1 < Ct ? load_widened(x) : load_widened<Last>(x);
      XF_UNROLL for (int h = 0; h < Ht; ++h) acc[h][c] = fma(v, p[h][k], acc[h][c]);
    }
  }
  XF_UNROLL for (int h = 0; h < Ht; ++h) {
    XF_UNROLL for (int c = 0; c < Ct; ++c) O.x[r0 + h][c0 + c] += acc[h][c];
  }
}
template <int Ht, int R, int N, int D, class M>
XF_INLINE void accumulate_pass(RowTile<R, D>& O, const RowTile<R, N>& P, const M& V, int r0) {
  constexpr int kVecs = RowTile<R, D>::kVecs, kAtOnce = (kHasAvx512 ? 16 : 4) / Ht;
  constexpr int kGroups = D / kLanes / kAtOnce, kRest = kVecs - kGroups * kAtOnce;
  XF_NO_UNROLL for (int i = 0; i < kGroups; ++i) {
    accumulate_columns<Ht, kAtOnce, kLanes>(O, P, V, r0, i * kAtOnce);
  }
  if constexpr (kRest > 0) {
    constexpr int kLast = D % kLanes ? D % kLanes : kLanes;
    accumulate_columns<Ht, kRest, kLast>(O, P, V, r0, kGroups * kAtOnce);
  }
}

// O[r0 .. r0 + Ht, a unit of columns] += P V; P is multiplied by the scales of the unit.
template <int Ht, int R, int N, int D, class M>
XF_INLINE void accumulate_unit(RowTile<R, D>& O, const RowTile<R, N>& P, const M& V, int r0,
                               int unit) {
  f32x16 acc[Ht][kUnitVecs] = {};
  const int keys = V.size() < N ? V.size() : N;
  for (int k = 0; k < keys; ++k) {
    each_in_unit(V.row(k) + unit * kUnitColumns / 2,
                 [&](f32x16 q, int c) __attribute__((always_inline)) {
                   XF_UNROLL for (int h = 0; h < Ht; ++h) {
                     const auto* p = reinterpret_cast<const float*>(P.x[r0 + h]);
                     acc[h][c] = fma(q, p[k], acc[h][c]);
                   }
                 });
  }
  XF_UNROLL for (int h = 0; h < Ht; ++h) {
    XF_UNROLL for (int c = 0; c < kUnitVecs; ++c) O.x[r0 + h][unit * kUnitVecs + c] += acc[h][c];
  }
}
template <int R, int N, int D, class M>
XF_INLINE void accumulate_units(RowTile<R, D>& O, const RowTile<R, N>& P, const M& V) {
  XF_NO_UNROLL for (int unit = 0; unit < D / kUnitColumns; ++unit) {
    RowTile<R, N> weighted = P;
    for (int key = 0; key < N; key += kLanes) {
      u16x16 bits;
      XF_UNROLL for (int i = 0; i < kLanes; ++i) {
        bits[i] = bit_cast<uint16_t>(V.scales.row_or_last(key + i)[unit]);
      }
      const f32x16 scales = Lanes<f16>::widen(bit_cast<f16x16>(bits));
      XF_NO_UNROLL for (int r = 0; r < R; ++r) weighted.x[r][key / kLanes] *= scales;
    }
    each_pass<R>([&](auto heads, int r0) __attribute__((always_inline)) {
      constexpr int Ht = decltype(heads)::value, kOnce = kHasAvx512 ? Ht : 1;
      XF_NO_UNROLL for (int r = r0; r < r0 + Ht; r += kOnce) {
        accumulate_unit<kOnce>(O, weighted, V, r, unit);
      }
    });
  }
}

// O += P V for the rows of V up to V.count.
template <int R, int N, int D, class M>
XF_INLINE void accumulate_rows(RowTile<R, D>& O, const RowTile<R, N>& P, const M& V) {
  if constexpr (kNibbles<std::remove_cvref_t<decltype(*V.row(0))>>) {
    accumulate_units(O, P, V);
  } else if constexpr (kScaled<M>) {
    RowTile<R, N> weighted = P;
    for (int key = 0; key < N; key += kLanes) {
      const f32x16 scales = scales_of(V, key);
      XF_NO_UNROLL for (int r = 0; r < R; ++r) weighted.x[r][key / kLanes] *= scales;
    }
    accumulate_rows(O, weighted, V.rows);
  } else {
    each_pass<R>([&](auto heads, int r0) __attribute__((always_inline)) {
      accumulate_pass<decltype(heads)::value>(O, P, V, r0);
    });
  }
}

}  // namespace xeflash::cpu
