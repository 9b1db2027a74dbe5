// Operands of the CPU backend's matrix products. The left one is packed once with lane = row;
// elements of K and V are broadcast from where they lie, or from a copy widened to fp32. bf16 stays
// bf16, in pairs, where the CPU has vdpbf16ps.
#pragma once

#include "cpu/tile.hpp"
#include "tile/packed_rows.hpp"
#include "tile/quantised.hpp"

namespace xeflash::cpu {

template <class T>
constexpr bool kPaired = false;
template <>
constexpr bool kPaired<bf16> = kIsa >= Isa::kAvx512Bf16;
template <class T>
constexpr bool kByAmx = kIsa == Isa::kAmxBf16 && std::is_same_v<T, bf16>;

constexpr int kKeyTile = 12;  // a multiple of the rows of K that a product takes at a time

// Rows of a matrix in memory: `count` of them, `stride` elements apart, the elements of a row
// contiguous.
template <class T>
struct Rows {
  T* data;
  int64_t stride;
  int count;

  XF_INLINE int size() const { return count; }
  XF_INLINE T* row(int i) const { return existing_row(i < count ? i : count - 1); }
  XF_INLINE T* existing_row(int i) const { return data + i * stride; }
  XF_INLINE Rows from(int first) const { return {data + first * stride, stride, count - first}; }
  XF_INLINE Rows up_to(int end) const { return {data, stride, end}; }
  XF_INLINE Rows columns(int column, int) const { return {data + column, stride, count}; }
};

// Left operand, R x C: its columns, or its column pairs of bf16.
template <class T, int R, int C>
struct Left : Columns<f32x16, R, C> {};
template <class T, int R, int C>
  requires kPaired<T>
struct Left<T, R, C> : Columns<u32x16, R, round_up(C, kByAmx<T> ? 32 : 2) / 2> {};

template <class Rows, class T, int R, int C, class... Before>
using Query = Left<T, R, C>;

// What elements E of K and V are multiplied as with queries of T. Here E also says how both are
// kept.
template <class T, class E>
using Operand = E;

// A CPU sees the next rows coming.
template <int N, int D, class M>
XF_INLINE void prefetch(const M&) {}

// Nothing is shared: a work-group is one work-item, and sees all keys of its rows.
constexpr bool kStaged = false;
constexpr int kNeighbours = 1, kTeam = 1, kKeyTurns = 1;
XF_INLINE int neighbour() { return 0; }
XF_INLINE int member() { return 0; }
XF_INLINE int key_turn() { return 0; }
template <class Output, class... Tiles>
XF_INLINE void allocate_shared() {}
template <class Output, class Max, class Sum, class Decay>
XF_INLINE void merge_turns(Output&, Max&, Sum&, const Decay&) {}
template <class Sum>
XF_INLINE void sum_of_team(Sum&) {}
template <class T, int R, int N>
using PartOfLeft = Left<T, R, N>;
template <class T, int R, int N, class... Before>
struct Joint {};
template <class, class Probs, class Output, class Max, class Sum, class Decay>
XF_INLINE const Probs& joined(const Probs& P, Output&, Max&, Sum&, const Decay&) {
  return P;
}
XF_INLINE void reuse_shared() {}

template <int C, class T>
XF_INLINE u32x16 load_pairs(const T* row, int c) {  // 16 pairs from column 2 c; odd tails read 0
  u32x16 v = {};
  if (2 * c + 2 * kLanes <= C) {
    v = load_as<u32x16>(row + 2 * c);
  } else {
    __builtin_memcpy(&v, row + 2 * c, (C % (2 * kLanes)) * sizeof(T));
  }
  return v;
}

// t(row, column) = read(row of m, column), a vector of the columns from there on.
template <class V, int R, int C, class Rows, class Read>
XF_INLINE void load_columns(Columns<V, R, C>& t, const Rows& m, Read read) {
  for (int r = 0; r < R / kLanes; ++r) {
    for (int c = 0; c < C; c += kLanes) {
      V v[kLanes];
      XF_UNROLL for (int i = 0; i < kLanes; ++i) v[i] = read(m.row(r * kLanes + i), c);
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

// Rows of any type of element: what they are multiplied with decides how they are kept.
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

XF_INLINE f32x16 negative(f32x16 v) { return -v; }
XF_INLINE u32x16 negative(u32x16 pairs) { return pairs ^ 0x80008000u; }

template <class T, int R, int C>
XF_INLINE void negate(Left<T, R, C>& A) {
  for (auto& rows : A.x) {
    for (auto& column : rows) {
      for (auto& v : column) v = negative(v);
    }
  }
}

// The first `count` rows of m, which may lie anywhere, as fp32; rows that do not exist repeat the
// last one.
template <int D, int N, int Stride, class M>
XF_INLINE void widen_rows(float (&x)[N][Stride], const M& m, int count) {
  for (int j = 0; j < count; ++j) {
    const auto* row = m.row(j);
    float scale = 1.f;
    if constexpr (kScaled<M>) scale = m.scale(j);
    const auto widened = [&](f32x16 v) { return kScaled<M> ? v * scale : v; };
    int d = 0;
    for (; d + kLanes <= D; d += kLanes) store_as(&x[j][d], widened(load_widened(row + d)));
    if constexpr (D % kLanes) store_as(&x[j][d], widened(load_widened<D % kLanes>(row + d)));
  }
}

// Up to N rows of K, a Block: read where they lie (fp32, pairs) or widened to fp32 (the smaller
// types, bf16 without pairs).
template <class T, int N, int D, class Block = void>
struct Keys {
  const T* data[N];
  int count;

  template <class M>
  XF_INLINE explicit Keys(const M& m) : count(m.count) {
    for (int j = 0; j < (count < N ? round_up(count, kKeyTile) : N); ++j) data[j] = m.row(j);
  }
  XF_INLINE int rows() const { return count; }
  XF_INLINE const T* row(int j) const { return data[j]; }
};
template <class T, int N, int D, class Block>
  requires(!kPaired<T> && sizeof(T) < 4)
struct Keys<T, N, D, Block> {
  static constexpr int kStride = round_up(D, kLanes);
  alignas(64) float x[N][kStride];
  int count;

  template <class M>
  XF_INLINE explicit Keys(const M& m) : count(m.count) {
    widen_rows<D>(x, m, m.count < N ? round_up(m.count, kKeyTile) : N);
  }
  XF_INLINE int rows() const { return count; }
  XF_INLINE const float* row(int j) const { return x[j]; }
};

// Pairs of `Count` elements of two rows.
template <int Count, class T>
XF_INLINE u32x16 interleave(const T* even, const T* odd) {
  u16x16 a = {}, b = {};
  __builtin_memcpy(&a, even, Count * sizeof(T));
  __builtin_memcpy(&b, odd, Count * sizeof(T));
  if constexpr (Count < kLanes) a = keep_whole(a), b = keep_whole(b);
  return __builtin_convertvector(a, u32x16) | (__builtin_convertvector(b, u32x16) << 16);
}

// Up to N rows of V: packed, as broadcasts walk down its columns; bf16 as pairs of rows. A product
// takes `steps()` of them, `stride` apart.
template <class T, int N, int D, class Before = void, class Block = void>
struct Values {
  static constexpr int kStride = round_up(D, kLanes) + kLanes;  // no power of two: all sets of L1
  alignas(64) float packed[N][kStride];
  const float* x;
  int64_t stride;
  int count;

  template <class M>
  XF_INLINE explicit Values(const M& m) : count(m.count < N ? m.count : N) {
    if constexpr (std::is_same_v<M, Rows<const float>>) {
      x = m.data;
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
template <class T, int N, int D, class Before, class Block>
  requires(kPaired<T> && !kByAmx<T>)
struct Values<T, N, D, Before, Block> {
  static constexpr int stride = round_up(D, kLanes);
  alignas(64) uint32_t x[N / 2][stride];
  int count;

  // An odd last row is paired with zeros.
  template <class M>
  XF_INLINE explicit Values(const M& m) : count(m.count < N ? m.count : N) {
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

}  // namespace xeflash::cpu
