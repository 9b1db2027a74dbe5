// Right operands of the CPU backend's products: elements are broadcast from where they lie, or from
// a copy that is widened to fp32 or in pairs.
#pragma once

#include "cpu/left.hpp"
#include "cpu/quantised.hpp"

namespace xeflash::cpu {

// The type in which elements E of K and V are multiplied with queries of type T. Here it is E,
// which also decides how both operands are kept.
template <class T, class E>
using Operand = E;

// Asks for N rows, as far as they exist, to come into L2. This is done for fp32 only, whose rows
// are read in place, some columns at a time; a CPU foresees the other reads.
template <int N, int D, class M>
XF_INLINE void prefetch(const M& m) {
  if constexpr (std::is_same_v<std::remove_cvref_t<decltype(*m.row(0))>, float>) {
    const int count = m.size() < N ? m.size() : N;
    for (int i = 0; i < count; ++i) prefetch<false>(m.row(i), D * int64_t{sizeof(float)});
  }
}

// A multiple of the rows of K that a product takes at a time, of N.
template <int N>
constexpr int kKeyTile = N % 12 ? 8 : 12;

// Widens row j of m to fp32, and multiplies it by its scales if it has some.
template <int D, class M>
XF_INLINE void widen_row(float* x, const M& m, int j) {
  const auto* row = m.row_or_last(j);
  if constexpr (kNibbles<std::remove_cvref_t<decltype(*row)>>) {
    for (int d = 0; d < D; d += kUnitColumns) {
      const float scale = m.scale(j, d / kUnitColumns);
      each_in_unit(row + d / 2, [&](f32x16 q, int c) { store_as(x + d + c * kLanes, q * scale); });
    }
  } else {
    float scale = 1.f;
    if constexpr (kScaled<M>) scale = m.scale(j);
    const auto widened = [&](f32x16 v) { return kScaled<M> ? v * scale : v; };
    int d = 0;
    for (; d + kLanes <= D; d += kLanes) store_as(x + d, widened(load_widened(row + d)));
    if constexpr (D % kLanes) store_as(x + d, widened(load_widened<D % kLanes>(row + d)));
  }
}
// Widens the first `count` rows of m, which may lie anywhere. Rows that do not exist repeat the
// last one.
template <int D, int N, int Stride, class M>
XF_INLINE void widen_rows(float (&x)[N][Stride], const M& m, int count) {
  for (int j = 0; j < count; ++j) widen_row<D>(x[j], m, j);
}

// Up to N rows of a block of K. fp32 and pairs are read in place; smaller types, and bf16 without
// pairs, are widened to fp32. Rows that do not exist, up to a multiple of kKeyTile, are 0 where
// rows are read in place (in a pair they may meet a weight), and repeat the last row where rows are
// widened.
template <class T, int N, int D, class Block = void, int Begin = 0>
struct RightT {
  static constexpr T kZeros[D] = {};
  const T* data[N];
  int count;

  template <class M>
  XF_INLINE explicit RightT(const M& m) : count(m.size()) {
    for (int j = 0; j < (count < N ? round_up(count, kKeyTile<N>) : N); ++j)
      data[j] = j < count ? m.row(j) : kZeros;
  }
  XF_INLINE int rows() const { return count; }
  XF_INLINE const T* row(int j) const { return data[j]; }
};
template <class T, int N, int D, class Block, int Begin>
  requires(!kPaired<T> && sizeof(T) < 4)
struct RightT<T, N, D, Block, Begin> {
  static constexpr int kStride = round_up(D, kLanes);
  alignas(64) float x[N][kStride];
  int count;

  template <class M>
  XF_INLINE explicit RightT(const M& m) : count(m.size()) {
    widen_rows<D>(x, m, m.size() < N ? round_up(m.size(), kKeyTile<N>) : N);
  }
  XF_INLINE int rows() const { return count; }
  XF_INLINE const float* row(int j) const { return x[j]; }
};

// Interleaves `Count` elements of two rows to pairs.
template <int Count, class T>
XF_INLINE u32x16 interleave(const T* even, const T* odd) {
  u16x16 a = {}, b = {};
  __builtin_memcpy(&a, even, Count * sizeof(T));
  __builtin_memcpy(&b, odd, Count * sizeof(T));
  if constexpr (Count < kLanes) a = keep_whole(a), b = keep_whole(b);
  return __builtin_convertvector(a, u32x16) | (__builtin_convertvector(b, u32x16) << 16);
}

// Up to N rows of V, packed, as broadcasts walk down their columns; bf16 is packed as pairs of
// rows. A product takes `steps()` rows or pairs, `stride` apart.
template <class T, int N, int D, class Block = void, int Begin = 0>
struct Right {
  static constexpr int kStride = round_up(D, kLanes) + kLanes;  // for D = 2^n: use all sets of L1
  alignas(64) float packed[N][kStride];
  const float* x;
  int64_t stride;
  int count;

  template <class M>
  XF_INLINE explicit Right(const M& m) : count(m.size() < N ? m.size() : N) {
    if constexpr (std::is_same_v<M, Rows<const float>>) {
      x = m.row(0);
      stride = m.stride;
      if (stride <= 2 * kStride) return;  // dense enough to be read in place
    }
    widen_rows<D>(packed, m, count);
    x = packed[0];
    stride = kStride;
  }
  XF_INLINE int steps() const { return count; }
  XF_INLINE const float* first() const { return x; }
};
template <class T, int N, int D, class Block, int Begin>
  requires(kPaired<T> && !kByAmx<T>)
struct Right<T, N, D, Block, Begin> {
  static constexpr int stride = round_up(D, kLanes);
  alignas(64) uint32_t x[N / 2][stride];
  int count;

  // An odd last row is paired with zeros.
  template <class M>
  XF_INLINE explicit Right(const M& m) : count(m.size() < N ? m.size() : N) {
    for (int j = 0; j < count / 2; ++j) interleave_rows(j, m.row(2 * j), m.row(2 * j + 1));
    if (count % 2) {
      const T zeros[stride] = {};
      interleave_rows(count / 2, m.row(count - 1), zeros);
    }
  }
  XF_INLINE void interleave_rows(int j, const T* even, const T* odd) {
    int d = 0;
    for (; d + kLanes <= D; d += kLanes) store_as(&x[j][d], interleave<kLanes>(even + d, odd + d));
    if constexpr (D % kLanes) store_as(&x[j][d], interleave<D % kLanes>(even + d, odd + d));
  }
  XF_INLINE int steps() const { return (count + 1) / 2; }
  XF_INLINE const uint32_t* first() const { return x[0]; }
};

// The blocks of rows of a matrix, one after the other, as right operands.
template <class Operand>
struct BlocksOf;
template <template <class, int, int, class, int> class AnyRight, class T, int N, int D, class M,
          int Begin>
struct BlocksOf<AnyRight<T, N, D, M, Begin>> {
  const M rows;

  XF_INLINE explicit BlocksOf(const M& m) : rows(m) {}
  XF_INLINE void bring(int) const {}
  XF_INLINE auto brought(int first) const { return AnyRight<T, N, D, M, Begin>(rows.from(first)); }
};

// Nothing is fetched ahead: the CPU foresees by itself which rows come next.
template <int N, int D, class Matrix>
struct Ahead {
  XF_INLINE explicit Ahead(const Matrix&) {}
  XF_INLINE void fetch(int) {}
};

}  // namespace xeflash::cpu
