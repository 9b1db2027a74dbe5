// Matrix products of the CPU backend: A is packed once with lane = row, B is broadcast element by
// element from where it lies. fp32, and fp16 widened, by FMA; bf16 in pairs by vdpbf16ps where the
// CPU has it.
#pragma once

#include "cpu/tile.hpp"

namespace xeflash::cpu {

template <class T>
constexpr bool kPaired = false;
template <>
constexpr bool kPaired<bf16> = kIsa == Isa::kAvx512Bf16;

constexpr int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

// Rows of a matrix in memory: `count` of them, `stride` elements apart, the elements of a row
// contiguous.
template <class T>
struct Rows {
  T* data;
  int64_t stride;
  int count;

  XF_INLINE T* row(int i) const { return data + (i < count ? i : count - 1) * stride; }
  XF_INLINE Rows from(int first) const { return {data + first * stride, stride, count - first}; }
  XF_INLINE Rows up_to(int end) const { return {data, stride, end}; }
};

// The register tile: Rt vectors of rows times Nt columns of accumulators, within 32 zmm or 16 ymm.
template <int R>
struct RegisterTile {
  static constexpr int Rt = !kHasAvx512 ? 1 : (R / kLanes < 4 ? R / kLanes : 4);
  static constexpr int keys = !kHasAvx512 || Rt == 4 ? 6 : 12;
  static constexpr int dims = !kHasAvx512 ? 6 : (Rt == 4 ? 4 : 8);
};

// ---- operands -----------------------------------------------------------------------------------

// Left operand, R x C: x[column][16 rows], or x[column pair][16 rows] of bf16 pairs.
template <class T, int R, int C>
struct Left {
  static constexpr int kVecs = R / kLanes;
  alignas(64) f32x16 x[C][kVecs];
};
template <class T, int R, int C>
  requires kPaired<T>
struct Left<T, R, C> {
  static constexpr int kVecs = R / kLanes;
  alignas(64) u32x16 x[(C + 1) / 2][kVecs];
};

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

template <class T, int R, int C>
XF_INLINE void load(Left<T, R, C>& A, const Rows<const T>& m) {
  constexpr int kCols = kPaired<T> ? (C + 1) / 2 : C;
  for (int r = 0; r < R / kLanes; ++r) {
    for (int c = 0; c < kCols; c += kLanes) {
      if constexpr (kPaired<T>) {
        u32x16 v[kLanes];
        XF_UNROLL for (int i = 0; i < kLanes; ++i) v[i] = load_pairs<C>(m.row(r * kLanes + i), c);
        transpose(v);
        XF_UNROLL for (int i = 0; i < kLanes; ++i) {
          if (c + i < kCols) A.x[c + i][r] = v[i];
        }
      } else {
        f32x16 v[kLanes];
        XF_UNROLL for (int i = 0; i < kLanes; ++i) {
          const T* row = m.row(r * kLanes + i) + c;
          v[i] = c + kLanes <= C ? load_widened(row) : load_widened<C % kLanes>(row);
        }
        transpose(v);
        XF_UNROLL for (int i = 0; i < kLanes; ++i) {
          if (c + i < kCols) A.x[c + i][r] = v[i];
        }
      }
    }
  }
}

XF_INLINE f32x16 negative(f32x16 v) { return -v; }
XF_INLINE u32x16 negative(u32x16 pairs) { return pairs ^ 0x80008000u; }

template <class T, int R, int C>
XF_INLINE void negate(Left<T, R, C>& A) {
  for (auto& column : A.x) {
    for (auto& v : column) {
      v = negative(v);
    }
  }
}

// P = 2^(S * scale - m) in the type of V, as the left operand of P V; l += row sums of P, before it
// is rounded.
template <int Degree, class T, int R, int C>
XF_INLINE void exp2_and_sum(Left<T, R, C>& P, const Tile<R, C>& S, float scale, const ColVec<R>& m,
                            ColVec<R>& l) {
  f32x16 sum_even[R / kLanes] = {}, sum_odd[R / kLanes] = {};
  for (int c = 0; c < S.cols; c += 2) {
    XF_UNROLL for (int r = 0; r < R / kLanes; ++r) {
      const f32x16 even = exp2<Degree>(fma(S.x[c][r], scale, -m.x[r]));
      const f32x16 odd = exp2<Degree>(fma(S.x[c + 1][r], scale, -m.x[r]));
      sum_even[r] += even;
      sum_odd[r] += odd;
      if constexpr (kPaired<T>) {
        P.x[c / 2][r] = pack_pairs(even, odd);
      } else {
        P.x[c][r] = even;
        P.x[c + 1][r] = odd;
      }
    }
  }
  l.map([&](f32x16 v, int r) { return v + (sum_even[r] + sum_odd[r]); });
}

// The first `count` rows of m as fp32; rows that do not exist repeat the last one.
template <int D, class T, int N, int Stride>
XF_INLINE void widen_rows(float (&x)[N][Stride], const Rows<const T>& m, int count) {
  for (int j = 0; j < count; ++j) {
    const T* row = m.row(j);
    int d = 0;
    for (; d + kLanes <= D; d += kLanes) store_as(&x[j][d], load_widened(row + d));
    if constexpr (D % kLanes) store_as(&x[j][d], load_widened<D % kLanes>(row + d));
  }
}

// Up to N rows of K: read where they lie (fp32, pairs) or widened to fp32 (fp16, bf16 without
// pairs).
template <class T, int N, int D>
struct Keys {
  Rows<const T> memory;

  XF_INLINE explicit Keys(const Rows<const T>& m) : memory(m) {}
  XF_INLINE int rows() const { return memory.count; }
  XF_INLINE const T* row(int j) const { return memory.row(j); }
};
template <class T, int N, int D>
  requires(!kPaired<T> && sizeof(T) == 2)
struct Keys<T, N, D> {
  static constexpr int kStride = round_up(D, kLanes);
  alignas(64) float x[N][kStride];
  int count;

  XF_INLINE explicit Keys(const Rows<const T>& m) : count(m.count) {
    widen_rows<D>(x, m, m.count < N ? round_up(m.count, 12) : N);
  }
  XF_INLINE int rows() const { return count; }
  XF_INLINE const float* row(int j) const { return x[j]; }
};

// Up to N rows of V: packed, as broadcasts walk down its columns; bf16 as pairs of rows.
template <class T, int N, int D>
struct Values {
  static constexpr int kStride = round_up(D, kLanes);
  alignas(64) float packed[N][kStride];
  const float* x;
  int64_t stride;
  int count;

  XF_INLINE explicit Values(const Rows<const T>& m) : count(m.count < N ? m.count : N) {
    if constexpr (sizeof(T) == 4) {
      x = m.data;
      stride = m.stride;
      if (stride <= 2 * kStride) return;  // dense enough to be read in place
    }
    widen_rows<D>(packed, m, count);
    x = packed[0];
    stride = kStride;
  }
  XF_INLINE int steps() const { return count; }
  XF_INLINE const float* step(int j) const { return x + j * stride; }
};
template <class T, int N, int D>
  requires kPaired<T>
struct Values<T, N, D> {
  static constexpr int kStride = round_up(D, kLanes);
  alignas(64) uint32_t x[N / 2][kStride];
  int count;

  XF_INLINE explicit Values(const Rows<const T>& m) : count(m.count < N ? m.count : N) {
    for (int j = 0; j < steps(); ++j) {
      const T *even = m.row(2 * j), *odd = m.row(2 * j + 1);
      int d = 0;
      for (; d + kLanes <= D; d += kLanes)
        store_as(&x[j][d], interleave<kLanes>(even + d, odd + d));
      if constexpr (D % kLanes) store_as(&x[j][d], interleave<D % kLanes>(even + d, odd + d));
    }
  }
  template <int Count>
  static XF_INLINE u32x16 interleave(const T* even, const T* odd) {
    u16x16 a = {}, b = {};
    __builtin_memcpy(&a, even, Count * sizeof(T));
    __builtin_memcpy(&b, odd, Count * sizeof(T));
    return __builtin_convertvector(a, u32x16) | (__builtin_convertvector(b, u32x16) << 16);
  }
  XF_INLINE int steps() const { return (count + 1) / 2; }
  XF_INLINE const uint32_t* step(int j) const { return x[j]; }
};

// ---- products -----------------------------------------------------------------------------------

XF_INLINE f32x16 multiply_add(f32x16 acc, float b, f32x16 a) { return fma(a, b, acc); }
XF_INLINE f32x16 multiply_add(f32x16 acc, uint32_t b, u32x16 a) {
  return dot_pairs(acc, u32x16(b), a);
}

// S = A K^T for the rows that K has
template <class T, int R, int N, int D>
XF_INLINE void mma_ABt(Tile<R, N>& S, const Left<T, R, D>& A, const Keys<T, N, D>& K) {
  using Reg = RegisterTile<R>;
  static_assert(N % Reg::keys == 0, "the key block must be a multiple of the register tile");
  S.cols = K.rows() < N ? round_up(K.rows(), Reg::keys) : N;
  for (int r0 = 0; r0 < R / kLanes; r0 += Reg::Rt) {
    for (int j = 0; j < S.cols; j += Reg::keys) {
      f32x16 acc[Reg::keys][Reg::Rt] = {};
      decltype(K.row(0)) k[Reg::keys];
      XF_UNROLL for (int n = 0; n < Reg::keys; ++n) k[n] = K.row(j + n);
      if constexpr (kPaired<T>) {
        for (int d = 0; d < D / 2; ++d) {
          XF_UNROLL for (int n = 0; n < Reg::keys; ++n) {
            const uint32_t b = load_as<uint32_t>(k[n] + 2 * d);
            XF_UNROLL for (int r = 0; r < Reg::Rt; ++r) {
              acc[n][r] = multiply_add(acc[n][r], b, A.x[d][r0 + r]);
            }
          }
        }
        if constexpr (D % 2) {
          XF_UNROLL for (int n = 0; n < Reg::keys; ++n) {
            const uint32_t b = k[n][D - 1].bits;
            XF_UNROLL for (int r = 0; r < Reg::Rt; ++r) {
              acc[n][r] = multiply_add(acc[n][r], b, A.x[D / 2][r0 + r]);
            }
          }
        }
      } else {
        for (int d = 0; d < D; ++d) {
          XF_UNROLL for (int n = 0; n < Reg::keys; ++n) {
            XF_UNROLL for (int r = 0; r < Reg::Rt; ++r) {
              acc[n][r] = multiply_add(acc[n][r], k[n][d], A.x[d][r0 + r]);
            }
          }
        }
      }
      XF_UNROLL for (int n = 0; n < Reg::keys; ++n) {
        XF_UNROLL for (int r = 0; r < Reg::Rt; ++r) S.x[j + n][r0 + r] = acc[n][r];
      }
    }
  }
}

// O[:, d .. d + Nt) += P V[:, d .. d + Nt)
template <int Nt, class T, int R, int N, int D>
XF_INLINE void mma_AB_columns(Tile<R, D>& O, const Left<T, R, N>& P, const Values<T, N, D>& V,
                              int r0, int d) {
  constexpr int Rt = RegisterTile<R>::Rt;
  f32x16 acc[Nt][Rt];
  XF_UNROLL for (int n = 0; n < Nt; ++n) {
    XF_UNROLL for (int r = 0; r < Rt; ++r) acc[n][r] = O.x[d + n][r0 + r];
  }
  const int steps = V.steps();
  for (int j = 0; j < steps; ++j) {
    const auto* v = V.step(j) + d;
    XF_UNROLL for (int n = 0; n < Nt; ++n) {
      XF_UNROLL for (int r = 0; r < Rt; ++r) acc[n][r] =
          multiply_add(acc[n][r], v[n], P.x[j][r0 + r]);
    }
  }
  XF_UNROLL for (int n = 0; n < Nt; ++n) {
    XF_UNROLL for (int r = 0; r < Rt; ++r) O.x[d + n][r0 + r] = acc[n][r];
  }
}

// O += P V
template <class T, int R, int N, int D>
XF_INLINE void mma_AB(Tile<R, D>& O, const Left<T, R, N>& P, const Values<T, N, D>& V) {
  using Reg = RegisterTile<R>;
  for (int r0 = 0; r0 < R / kLanes; r0 += Reg::Rt) {
    int d = 0;
    for (; d + Reg::dims <= D; d += Reg::dims) mma_AB_columns<Reg::dims>(O, P, V, r0, d);
    if constexpr (D % Reg::dims) mma_AB_columns<D % Reg::dims>(O, P, V, r0, d);
  }
}

// ---- results ------------------------------------------------------------------------------------

template <class T, int R, int D>
XF_INLINE void store(const Rows<T>& m, const Tile<R, D>& O) {
  for (int r = 0; r < R / kLanes; ++r) {
    const int rows = m.count - r * kLanes;
    for (int d = 0; d < D; d += kLanes) {
      f32x16 v[kLanes];
      XF_UNROLL for (int i = 0; i < kLanes; ++i) v[i] = d + i < D ? O.x[d + i][r] : f32x16(0.f);
      transpose(v);
      XF_UNROLL for (int i = 0; i < kLanes; ++i) {
        if (i >= rows) continue;
        T* row = m.data + (r * kLanes + i) * m.stride + d;
        if (d + kLanes <= D) {
          store_narrowed(row, v[i]);
        } else {
          store_narrowed<D % kLanes>(row, v[i]);
        }
      }
    }
  }
}

template <int R>
XF_INLINE void store(float* p, int count, const ColVec<R>& v) {
  for (int i = 0; i < R; ++i) {
    if (i < count) p[i] = v.x[i / kLanes][i % kLanes];
  }
}

}  // namespace xeflash::cpu
