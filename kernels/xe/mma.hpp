// Matrix products of the Xe backend: dpas for bf16 and fp16; for fp32, multiply-adds of the vector
// unit, which keep its precision. K and V are loaded in the layout in which they are multiplied.
#pragma once

#include "xe/right.hpp"

namespace xeflash::xe {

// C += A B, or C = A B for the first step of a sum, on 8 rows and kLanes columns of C.
template <class T, class Block>
XF_INLINE void multiply(Block C, simd<T, kDepth * kLanes> B, simd<T, 8 * kDepth> A, bool first) {
  if (first) {
    C = esimd::xmx::dpas<8, 8, float>(B, A);
  } else {
    C = esimd::xmx::dpas<8, 8, float>(simd<float, 8 * kLanes>(C), B, A);
  }
}
// C += A B in fp32, or C = A B, for K columns of A, from column k0 of its block on. Their products
// are summed on their own and then added to C: short sums lose less to rounding.
template <int K, class Block>
XF_INLINE void multiply(Block C, simd<float, K * kLanes> B, simd<float, 8 * kLanes> A, int k0,
                        bool first) {
  XF_UNROLL for (int r = 0; r < 8; ++r) {
    floats sum = part<kLanes>(B, 0) * A.template replicate_w<kLanes, 1>(r * kLanes + k0);
    XF_UNROLL for (int k = 1; k < K; ++k) {
      sum += part<kLanes>(B, k * kLanes) * A.template replicate_w<kLanes, 1>(r * kLanes + k0 + k);
    }
    auto row = C.template select<kLanes, 1>(r * kLanes);
    if (first)
      row = sum;
    else
      row += sum;
  }
}

// S = A K^T. A step multiplies one chunk of columns of every key: of all N keys, or of this team
// member's share of them. While it does, the loads of the next step are in flight, if Q, O and S (6
// bytes per row and column, 4 per row and key) leave room for them.
template <class LeftTile, class T, int R, int Scored, int N, int D, class Block, int Begin>
XF_INLINE void mma_ABt(Tile<R, Scored>& S, const LeftTile& A,
                       const RightT<T, N, D, Block, Begin>& K, AllColumns = {}) {
  static_assert(Scored == N || Scored == N / Group::team);
  using Chunks = RightT<T, N, D, Block, Begin>;
  constexpr int kColumns = Chunks::kColumns, kSteps = round_up(D, kColumns) / kColumns;
  constexpr int kBlocks = Scored / kLanes, kWidth = LeftTile::kWidth;
  constexpr int kAhead = R * (6 * D + 4 * Scored) > kGrfBytes * 3 / 4 ? 0 : 1;
  const int first = Scored == N ? 0 : Group::member() * kBlocks;
  typename Chunks::Stream stream(K, first);
  typename LeftTile::Stream rows(A);
  simd<T, kColumns * kLanes> chunk[kAhead + 1][kBlocks];
  in_steps<kSteps + kAhead>([&](auto at) __attribute__((always_inline)) {
    constexpr int step = at;
    if constexpr (step < kSteps) {
      stream.template load<step>(chunk[step % (kAhead + 1)]);
    }
    if constexpr (step >= kAhead) {
      constexpr int c = step - kAhead, column = c * kColumns;
      if constexpr (Chunks::kInTurn) esimd::fence<kScheduleBarrier>();
      rows.template move_to<column>();
      XF_UNROLL for (int r = 0; r < R / 8; ++r) {
        const auto a = rows.block(r, column);
        XF_UNROLL for (int n = 0; n < kBlocks; ++n) {
          const auto& B = chunk[c % (kAhead + 1)][n];
          if constexpr (sizeof(T) == 2)
            multiply<T>(S.block(r, n), B, a, c == 0);
          else
            multiply<kColumns>(S.block(r, n), B, a, column % kWidth, c == 0);
        }
      }
    }
  });
  if constexpr (kScaled<Block>) scale_columns(S, K.memory.scales.from(first * kLanes));
}

// Returns the dot product of each row of A with the same row of B, by the products of mma_ABt in
// the same order. So Delta of a row that sees one key equals that key's dP to the last bit.
template <int R, int D, class T>
XF_INLINE ColVec<R> row_dots(const Rows<const T>& A, const Rows<const T>& B) {
  constexpr int kWidth = RegisterLeft<T, R, D>::kWidth, kColumns = 32 / sizeof(T);
  Tile<R, kLanes> dots;  // 8 rows of A by kLanes rows of B that include the same 8
  fill(dots, 0.f);
  _Pragma("unroll 1") for (int c = 0; c < round_up(D, kWidth) / kWidth; ++c) {
    const simd<T, R * kWidth> a = load_left<T, R, D>(A, c);
    XF_UNROLL for (int k0 = 0; k0 < kWidth; k0 += kColumns) {
      // D is a multiple of 8: the last columns of a chunk of A may be beyond it.
      if (D % kWidth != 0 && k0 > 0 && c * kWidth + k0 >= D) break;
      XF_UNROLL for (int n = 0; n < R; n += kLanes) {
        auto dwords = load_transposed<D>(B, n, (c * kWidth + k0) / kColumns * 8);
        const simd<T, kColumns * kLanes> b = dwords.template bit_cast_view<T>();
        XF_UNROLL for (int r = n; r < n + kLanes && r < R; r += 8) {
          const auto rows = part<8 * kWidth>(a, r * kWidth);
          if constexpr (sizeof(T) == 2)
            multiply<T>(dots.block(r / 8, 0), b, rows, false);
          else
            multiply<kColumns>(dots.block(r / 8, 0), b, rows, k0, false);
        }
      }
    }
  }
  simd<float, R> diagonal;
  XF_UNROLL for (int r = 0; r < R; r += 8) {
    diagonal.template select<8, 1>(r) =
        dots.x.template select<8, kLanes + 1>(r * kLanes + r % kLanes);
  }
  return diagonal;
}

// O += P V for rows of V in blocks j, from row j kRows on, and columns in blocks kFirst to kFirst +
// kCount - 1, which the stream reads. P has the columns from kBegin on.
template <class Blocks, int j, int kFirst, int kCount, int kBegin, class T, int R, int N, int D>
XF_INLINE void add_block_products(Tile<R, D>& O, const RegisterLeft<T, R, N>& P,
                                  typename Blocks::Stream& stream) {
  constexpr int kChunks = Blocks::kColumns / kLanes;
  in_steps<kCount>([&](auto at) __attribute__((always_inline)) {
    constexpr int n = kFirst + at;
    const auto block = stream.template load<j, n>();
    XF_UNROLL for (int k = 0; k < Blocks::kRows / kDepth; ++k) {
      XF_UNROLL for (int b = 0; b < kChunks && n * kChunks + b < O.kChunks; ++b) {
        const auto B =
            part<kDepth * kLanes>(block, (b * (Blocks::kRows / kDepth) + k) * kDepth * kLanes);
        XF_UNROLL for (int r = 0; r < R / 8; ++r) {
          auto C = O.block(r, n * kChunks + b);
          const int row = j * Blocks::kRows + k * kDepth - kBegin;
          if constexpr (sizeof(T) == 2) {
            multiply<T>(C, B, P.block(r, row / kDepth), false);
          } else {
            XF_UNROLL for (int i = 0; i < kDepth / kLanes; ++i) {
              multiply<kLanes>(C, part<kLanes * kLanes>(B, i * kLanes * kLanes),
                               P.block(r, row / kLanes + i), 0, false);
            }
          }
        }
      }
    }
  });
}

// O += P V
template <class T, int R, int N, int D, class Block, int Begin>
XF_INLINE void mma_AB(Tile<R, D>& O, RegisterLeft<T, R, N> P, const Right<T, N, D, Block, Begin>& V,
                      AllColumns = {}) {
  using Blocks = Right<T, N, D, Block, Begin>;
  if constexpr (kScaled<Block>) scale_columns(P, V.memory.scales, kFactorUnit<typename Blocks::E>);
  typename Blocks::Stream stream(V);
  in_steps<N / Blocks::kRows>([&](auto j) __attribute__((always_inline)) {
    add_block_products<Blocks, j, 0, round_up(D, Blocks::kColumns) / Blocks::kColumns, 0>(O, P,
                                                                                          stream);
  });
}

}  // namespace xeflash::xe
