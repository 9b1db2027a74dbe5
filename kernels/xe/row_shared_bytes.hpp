// Caches in 8 bits without 2D block messages, as in row_shared.hpp:
//   S^T = K Q^T   The left operand is K, 32 columns of 8 keys as they lie; the planes of Q^T are in
//                 shared memory.
//   O += P V      The right operand is V: bytes of 4 keys, interleaved.
#pragma once

#include "xe/row_byte_values.hpp"
#include "xe/row_bytes.hpp"
#include "xe/row_shared.hpp"

namespace xeflash::xe {

// Q of a thread's D columns, and the place for its scores of N keys.
template <class E, int R, int D, int N>
struct StagedPlanes {
  using Query = SharedPlanes<E, R, D>;
  using Scores = TeamScores<R, N, Query::kSharedBytes>;
  static constexpr int kSharedBytes = Query::kSharedBytes + Scores::kSharedBytes;
  Query query;
  Scores scores;
};
template <class T, class E, int R, int D, int N>
XF_INLINE void load(StagedPlanes<E, R, D, N>& A, const Rows<const T>& m) {
  load(A.query, m);
}

// S = A K^T over the columns of the whole team, for the rows of K up to K.count.
template <class E, int R, int N, int D, class Block>
XF_INLINE void dot_rows(Tile<R, N>& S, StagedPlanes<E, R, D, N>& A, const Block& K) {
  constexpr int kTiles = R / 8, kSteps = D / kByteDepth;
  const auto own = A.scores.template of<8 * kLanes>(Group::member());
  const auto begin = addresses<N>(elements(K), 0, 0);
  XF_UNROLL for (int key = 0; key < N; key += 8) {
    simd<uint32_t, kPlaneBlock> keys[kSteps];
    const auto add_part = [&]<int Dwords>(simd<uint32_t, Dwords>(&rows)[8], int column) {
      XF_UNROLL for (int c = 0; c < Dwords; c += 8) {
        XF_UNROLL for (int k = 0; k < 8; ++k) {
          keys[column / kByteDepth + c / 8].template select<8, 1>(k * 8) = part<8>(rows[k], c);
        }
      }
    };
    each_part_of_rows<E, E, D>(part<8>(begin, key), add_part);
    XF_UNROLL for (int r = 0; r < kTiles; ++r) {
      const simd<float, 8> unit = part<8>(A.query.unit.x, r * 8);
      simd<float, 8 * kLanes> s =
          multiply_bytes<E>(A.query, r, keys) * unit.template replicate_vs_w<8, 0, 8>(0);
      own.store(key / 8 * kTiles + r, s.template bit_cast_view<uint32_t>());
    }
  }
  add_up(S, A.scores);
  finish_scores<E>(S, K);
}

// O += P V for the rows of V up to V.count.
template <class T, class E, int R, int N, int D, class Block>
  requires Group::staged
XF_INLINE void accumulate_rows(ByteSums<T, E, R, D>& sums, const FloatProbs<T, R, N>& P,
                               const Block& V) {
  const auto scaled = scaled_probs(sums, P, V);
  const auto begin = addresses<N>(elements(V), 0, 0);
  XF_UNROLL for (int key = 0; key < N; key += kDepth) {
    const int there = elements(V).size() - key;
    const auto multiply_part = [&]<int Dwords>(simd<uint32_t, Dwords>(&values)[kDepth],
                                               int column) {
      if (there < kDepth) {  // missing rows become 0, as 0 times infinity is NaN
        XF_UNROLL for (int k = 0; k < kDepth; ++k) {
          if (k >= there) values[k] = 0;
        }
      }
      XF_UNROLL for (int c = 0; c < 4 * Dwords; c += kLanes) {
        simd<uint8_t, kDepth * kLanes> quads;
        XF_UNROLL for (int k = 0; k < kDepth; ++k) {
          const simd<uint8_t, 4 * Dwords> row = values[k].template bit_cast_view<uint8_t>();
          quads.template select<kLanes, 4>(k / 4 * 4 * kLanes + k % 4) = part<kLanes>(row, c);
        }
        multiply_quads(sums, (column + c) / kLanes, quads, scaled, key / kDepth);
      }
    };
    each_part_of_rows<E, E, D>(part<kDepth>(begin, key), multiply_part);
  }
}

}  // namespace xeflash::xe
