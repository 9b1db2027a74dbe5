// Matrix products of the Xe backend: dpas 8 x 16 x 16 on bf16 and fp16. A comes from registers; K
// and V stream from memory in the layout dpas wants, pairs of 16-bit values down the reduced
// dimension, so neither is ever shuffled.
#pragma once

#include "xe/message.hpp"
#include "xe/tile.hpp"

namespace xeflash::xe {

constexpr int kDepth = 16;  // of one dpas, in 16-bit elements

// ---- operands -----------------------------------------------------------------------------------

// Left operand, R x C: laid out as a Tile.
template <class T, int R, int C>
struct Left {
  static_assert(sizeof(T) == 2, "fp32 needs products of its own: not written yet");
  static_assert(R % 8 == 0 && C % kDepth == 0);
  simd<T, R * C> x;

  XF_INLINE simd<T, 8 * kDepth> block(int r, int c) const {
    return part<8 * kDepth>(x, (c * R + r * 8) * kDepth);
  }
};

template <class T, int R, int C>
XF_INLINE void load(Left<T, R, C>& A, const Rows<const T>& m) {
  BlockMessage<T, 16, R> message(m.template surface<C>());
  XF_UNROLL for (int c = 0; c < C / kDepth; ++c) {
    message.move_x(c * kDepth);
    A.x.template select<R * kDepth, 1>(c * R * kDepth) = message.load();
  }
}

template <class T, int R, int C>
XF_INLINE void negate(Left<T, R, C>& A) {
  A.x.template bit_cast_view<uint32_t>() ^= 0x80008000u;
}

// P = 2^(S * scale - m) in the type of V; l += row sums of P, before it is rounded.
template <int Degree, class T, int R, int C, class Sum>
XF_INLINE void exp2_and_sum(Left<T, R, C>& P, const Tile<R, C>& S, float scale, const ColVec<R>& m,
                            Sum& l) {
  ColSum<R> sum;
  XF_UNROLL for (int c = 0; c < S.kChunks; ++c) {
    simd<float, R * kLanes> p;
    XF_UNROLL for (int r = 0; r < R; ++r) {
      p.template select<kLanes, 1>(r * kLanes) = esimd::exp2(f32x16(S.row(r, c) * scale - m[r]));
    }
    P.x.template select<R * kDepth, 1>(c * R * kDepth) = esimd::convert<T>(p);
    sum.x = c == 0 ? p : simd<float, R * kLanes>(sum.x + p);
  }
  l += sum;
}

// N rows of K: 16 keys of 16 elements come as 8 rows of pairs, lane = key, by a transposed load of
// 32-bit words.
template <class T, int N, int D>
struct Keys {
  static_assert(sizeof(T) == 2 && N % kLanes == 0 && D % kDepth == 0);
  BlockMessage<uint32_t, kDepth / 2, kLanes> message;

  XF_INLINE explicit Keys(const Rows<const T>& m) : message(m.template surface<D>()) {}
};

// N rows of V: 32 keys of 32 elements come as 2 blocks of 16 rows of pairs, lane = element, by a
// VNNI load.
template <class T, int N, int D>
struct Values {
  static_assert(sizeof(T) == 2 && N % kDepth == 0 && D % kLanes == 0);
  static constexpr int kRows = N % 32 ? 16 : 32, kBlocks = D % 32 ? 1 : 2;
  BlockMessage<T, kLanes, kRows, kBlocks> message;

  XF_INLINE explicit Values(const Rows<const T>& m) : message(m.template surface<D>()) {}
};

// ---- products -----------------------------------------------------------------------------------

// C += A B, or C = A B for the first step of a sum.
template <class T, class Block>
XF_INLINE void multiply(Block C, simd<T, kDepth * kLanes> B, simd<T, 8 * kDepth> A, bool first) {
  if (first) {
    C = esimd::xmx::dpas<8, 8, float>(B, A);
  } else {
    C = esimd::xmx::dpas<8, 8, float>(simd<float, 8 * kLanes>(C), B, A);
  }
}

// S = A K^T, 16 elements of every key a step. The loads of the next step are under way while one is
// multiplied, where Q, O and S (6 bytes per row and element, 4 per row and key) leave room for it.
template <class T, int R, int N, int D>
XF_INLINE void mma_ABt(Tile<R, N>& S, const Left<T, R, D>& A, const Keys<T, N, D>& K) {
  constexpr int kBlocks = N / kLanes, kSteps = D / kDepth;
  constexpr int kAhead = R * (6 * D + 4 * N) > kGrfBytes * 3 / 4 ? 0 : 1;
  auto message = K.message;
  simd<uint32_t, 8 * kLanes> pairs[kAhead + 1][kBlocks];
  XF_UNROLL for (int step = 0; step < kSteps + kAhead; ++step) {
    if (step < kSteps) {
      message.move_x(step * kDepth / 2);
      XF_UNROLL for (int n = 0; n < kBlocks; ++n) {
        message.move_y(n * kLanes);
        pairs[step % (kAhead + 1)][n] = message.load_transposed();
      }
    }
    if (step < kAhead) continue;
    const int c = step - kAhead;
    XF_UNROLL for (int n = 0; n < kBlocks; ++n) {
      XF_UNROLL for (int r = 0; r < R / 8; ++r) {
        auto B = pairs[c % (kAhead + 1)][n].template bit_cast_view<T>();
        multiply<T>(S.block(r, n), B, A.block(r, c), c == 0);
      }
    }
  }
}

// O += P V
template <class T, int R, int N, int D>
XF_INLINE void mma_AB(Tile<R, D>& O, const Left<T, R, N>& P, const Values<T, N, D>& V) {
  using Block = Values<T, N, D>;
  constexpr int kSteps = Block::kRows / kDepth;
  auto message = V.message;
  XF_UNROLL for (int j = 0; j < N / Block::kRows; ++j) {
    message.move_y(j * Block::kRows);
    XF_UNROLL for (int n = 0; n < D / kLanes; n += Block::kBlocks) {
      message.move_x(n * kLanes);
      const auto pairs = message.load_vnni();
      XF_UNROLL for (int k = 0; k < kSteps; ++k) {
        XF_UNROLL for (int b = 0; b < Block::kBlocks; ++b) {
          const auto B = part<256>(pairs, (b * kSteps + k) * 256);
          XF_UNROLL for (int r = 0; r < R / 8; ++r) {
            multiply<T>(O.block(r, n + b), B, P.block(r, j * kSteps + k), false);
          }
        }
      }
    }
  }
}

// ---- results ------------------------------------------------------------------------------------

template <class T, int R, int D>
XF_INLINE void store(const Rows<T>& m, const Tile<R, D>& O) {
  BlockMessage<uint16_t, kLanes, 8> message(m.template surface<D>());
  simd<T, R * D> values = esimd::convert<T>(O.x);
  auto bits = values.template bit_cast_view<uint16_t>();  // float stores convert values (2026.2)
  XF_UNROLL for (int c = 0; c < D / kLanes; ++c) {
    message.move_x(c * kLanes);
    XF_UNROLL for (int r = 0; r < R; r += 8) {
      message.move_y(r);
      message.store(bits.template select<8 * kLanes, 1>((c * R + r) * kLanes));
    }
  }
}

template <int R>
XF_INLINE void store(float* p, int count, const ColVec<R>& v) {
  const simd<uint32_t, R> row(0, 1);
  esimd::scatter<float, R>(p, simd<uint32_t, R>(row * 4u), v.x, simd<int32_t, R>(row) < count);
}

}  // namespace xeflash::xe
