// Products of bf16 by AMX, in blocks of 32 x 32 sums: four AMX tiles of 16 rows of 64 bytes each.
// Tiles of the CPU backend lie transposed in memory, so the products are S^T = K Q^T and O^T += V^T
// P^T. The left operands are K as it lies and V transposed; the right operands are Q and P in
// pairs, as they are packed for vdpbf16ps.
#pragma once

#include "cpu/right.hpp"

namespace xeflash::cpu {

// While an object of this type lives, the AMX tiles of this thread are 16 rows of 64 bytes.
struct AmxTiles {
  XF_INLINE AmxTiles() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    asm volatile("ldtilecfg (%0)" : : "r"(&config) : "memory");
  }
  XF_INLINE ~AmxTiles() { asm volatile("tilerelease" : : : "memory"); }
};

// Rows in memory, `stride` bytes apart.
struct AmxRows {
  const void* data;
  int64_t stride;

  XF_INLINE const char* from(int row, int byte = 0) const {
    return static_cast<const char*>(data) + row * stride + byte;
  }
};

// The sums C[32][32] are in AMX tiles 0 to 3. They begin at 0, or at what is in memory.
XF_INLINE void clear_sums() {
  asm volatile(
      "tilezero %%tmm0\n"
      "tilezero %%tmm1\n"
      "tilezero %%tmm2\n"
      "tilezero %%tmm3"
      :
      :
      : "memory");
}
XF_INLINE void load_sums(const AmxRows& C) {
  asm volatile(
      "tileloadd (%0,%2,1), %%tmm0\n"
      "tileloadd 64(%0,%2,1), %%tmm1\n"
      "tileloadd (%1,%2,1), %%tmm2\n"
      "tileloadd 64(%1,%2,1), %%tmm3"
      :
      : "r"(C.from(0)), "r"(C.from(16)), "r"(C.stride)
      : "memory");
}
XF_INLINE void store_sums(const AmxRows& C) {
  asm volatile(
      "tilestored %%tmm0, (%0,%2,1)\n"
      "tilestored %%tmm1, 64(%0,%2,1)\n"
      "tilestored %%tmm2, (%1,%2,1)\n"
      "tilestored %%tmm3, 64(%1,%2,1)"
      :
      : "r"(C.from(0)), "r"(C.from(16)), "r"(C.stride)
      : "memory");
}
// C += A B for 32 rows of A, 32 bf16 each, and 16 rows of B, 32 pairs each.
XF_INLINE void multiply_tiles(const char* A, int64_t a_stride, const char* B, int64_t b_stride) {
  asm volatile(
      "tileloadd (%2,%3,1), %%tmm6\n"
      "tileloadd (%0,%1,1), %%tmm4\n"
      "tileloadd 64(%2,%3,1), %%tmm7\n"
      "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n"
      "tileloadd (%4,%1,1), %%tmm5\n"
      "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n"
      "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n"
      "tdpbf16ps %%tmm7, %%tmm5, %%tmm3"
      :
      : "r"(A), "r"(a_stride), "r"(B), "r"(b_stride), "r"(A + 16 * a_stride)
      : "memory");
}
// C += A B for `steps` steps of 32 elements along the rows of A.
XF_INLINE void multiply_blocks(const AmxRows& A, const AmxRows& B, int steps) {
  for (int i = 0; i < steps; ++i) {
    multiply_tiles(A.from(0, 64 * i), A.stride, B.from(16 * i), B.stride);
  }
}

// Up to N rows of K. They are read in place if all N exist and lie near each other; otherwise they
// are copied and padded with zeros to multiples of 32 rows and of 32 elements.
template <class T, int N, int D, class Block, int Begin>
  requires kByAmx<T>
struct RightT<T, N, D, Block, Begin> {
  alignas(64) T copies[N][round_up(D, 32)];
  AmxRows rows;
  int count;

  template <class M>
  XF_INLINE explicit RightT(const M& m)
      : rows{copies, sizeof(copies[0])}, count(m.size() < N ? round_up(m.size(), 32) : N) {
    if constexpr (std::is_same_v<M, Rows<const T>> && D % 32 == 0) {
      if (m.size() >= N && m.stride <= 2 * D) {
        rows = {m.row(0), m.stride * static_cast<int64_t>(sizeof(T))};
        return;
      }
    }
    for (int j = 0; j < count; ++j) {
      XF_UNROLL for (int d = 0; d < D; d += 32) {
        store_as(&copies[j][d], j < m.size() ? load_pairs<D>(m.row(j), d / 2) : u32x16{});
      }
    }
  }
};

// S = A K^T for the rows that K has.
template <class T, int R, int N, int D, class Block, int Begin, class Seen = AllColumns>
  requires kByAmx<T>
XF_INLINE void mma_ABt(Tile<R, N>& S, const Left<T, R, D>& A,
                       const RightT<T, N, D, Block, Begin>& K, const Seen& = {}) {
  static_assert(R % 32 == 0 && N % 32 == 0);
  const AmxTiles tiles;
  S.cols = K.count;
  for (int r = 0; r < R / kLanes; r += 2) {  // keys inside: K stays in L1
    for (int key = 0; key < K.count; key += 32) {
      clear_sums();
      multiply_blocks({K.rows.from(key), K.rows.stride}, {&A.at(0, r), sizeof(A.x[0][0])},
                      round_up(D, 32) / 32);
      store_sums({&S.at(key, r), sizeof(S.x[0][0])});
    }
  }
}

// Up to N rows of V, transposed, with zeros up to a multiple of 32 rows. Columns that V does not
// have are not filled: they only reach columns of O that nobody reads.
template <class T, int N, int D, class Block, int Begin>
  requires kByAmx<T>
struct Right<T, N, D, Block, Begin> {
  alignas(64) u32x16 x[round_up(D, 32)][N / 32];  // pairs of keys
  int blocks;                                     // of 32 keys

  template <class M>
  XF_INLINE explicit Right(const M& m)
      : blocks(m.size() < N ? round_up(m.size(), 32) / 32 : N / 32) {
    const T zeros[round_up(D, kLanes)] = {};
    for (int b = 0; b < blocks; ++b) {
      const T* row[32];
      XF_UNROLL for (int i = 0; i < 32; ++i) {
        row[i] = 32 * b + i < m.size() ? m.row(32 * b + i) : zeros;
      }
      int d = 0;
      for (; d + kLanes <= D; d += kLanes) transpose_pairs<kLanes>(row, d, b);
      if constexpr (D % kLanes) transpose_pairs<D % kLanes>(row, d, b);
    }
  }
  template <int Count>
  XF_INLINE void transpose_pairs(const T* const (&row)[32], int d, int b) {
    u32x16 v[kLanes];
    XF_UNROLL for (int i = 0; i < kLanes; ++i) {
      v[i] = interleave<Count>(row[2 * i] + d, row[2 * i + 1] + d);
    }
    transpose(v);
    XF_UNROLL for (int i = 0; i < Count; ++i) x[d + i][b] = v[i];
  }
};

// O += P V
template <class T, int R, int N, int D, class Block, int Begin, class Seen = AllColumns>
  requires kByAmx<T>
XF_INLINE void mma_AB(Tile<R, D>& O, const Left<T, R, N>& P, const Right<T, N, D, Block, Begin>& V,
                      const Seen& = {}) {
  const AmxTiles tiles;
  for (int r = 0; r < R / kLanes; r += 2) {  // columns inside: V stays in L1
    for (int d = 0; d < D; d += 32) {
      const AmxRows sums{&O.at(d, r), sizeof(O.x[0][0])};
      load_sums(sums);
      multiply_blocks({V.x[d], sizeof(V.x[0])}, {&P.at(0, r), sizeof(P.x[0][0])}, V.blocks);
      store_sums(sums);
    }
  }
}

// This repeats the product of mma.hpp with 32 x 32 sums in each step.
template <class T>
  requires kByAmx<T>
XF_INLINE float multiply_in_registers(int steps, float) {
  const AmxTiles tiles;
  clear_sums();
  XF_NO_UNROLL for (int i = 0; i < steps; ++i) {
    asm volatile(
        "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n"
        "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n"
        "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n"
        "tdpbf16ps %%tmm7, %%tmm5, %%tmm3"
        :
        :
        : "memory");
  }
  return 0.f;
}

}  // namespace xeflash::cpu
