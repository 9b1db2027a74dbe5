// Keys in int8 without 2D block messages: S^T = K Q^T, as in row_shared.hpp. The left operand is K,
// 32 columns of 8 keys as they lie; the planes of Q^T are in shared memory.
#pragma once

#include "xe/row_bytes.hpp"
#include "xe/row_shared.hpp"

namespace xeflash::xe {

// Q of a thread's D columns, and the place for its scores of N keys.
template <int R, int D, int N>
struct StagedPlanes {
  using Query = SharedPlanes<R, D>;
  using Scores = TeamScores<R, N, Query::kSharedBytes>;
  static constexpr int kSharedBytes = Query::kSharedBytes + Scores::kSharedBytes;
  Query query;
  Scores scores;
};
template <class T, int R, int D, int N>
XF_INLINE void load(StagedPlanes<R, D, N>& A, const Rows<const T>& m) {
  load(A.query, m);
}

// S = A K^T over the columns of the whole team, for the rows of K up to K.count.
template <int R, int N, int D, class Block>
XF_INLINE void dot_rows(Tile<R, N>& S, StagedPlanes<R, D, N>& A, const Block& K) {
  constexpr int kTiles = R / 8, kSteps = D / kByteDepth;
  const auto own = A.scores.template of<8 * kLanes>(Group::member());
  const auto begin = addresses<N>(elements(K), 0, 0);
  XF_UNROLL for (int key = 0; key < N; key += 8) {
    simd<uint32_t, kPlaneBlock / 4> keys[kSteps];
    const auto add_part = [&]<int Dwords>(simd<uint32_t, Dwords>(&rows)[8], int column) {
      XF_UNROLL for (int c = 0; c < Dwords; c += 8) {
        XF_UNROLL for (int k = 0; k < 8; ++k) {
          keys[column / kByteDepth + c / 8].template select<8, 1>(k * 8) = part<8>(rows[k], c);
        }
      }
    };
    each_part_of_rows<int8_t, int8_t, D>(part<8>(begin, key), add_part);
    XF_UNROLL for (int r = 0; r < kTiles; ++r) {
      auto s = join_planes([&](auto& sum, auto plane) __attribute__((always_inline)) {
        XF_UNROLL for (int step = 0; step < kSteps; ++step) {
          const simd<int8_t, kPlaneBlock> k = keys[step].template bit_cast_view<int8_t>();
          sum = esimd::xmx::dpas<8, 8, int32_t>(sum, A.query.template block<plane>(r, step), k);
        }
      });
      const simd<float, 8> unit = part<8>(A.query.unit.x, r * 8);  // of this thread's columns
      s *= unit.template replicate_vs_w<8, 0, 8>(0);
      own.store(key / 8 * kTiles + r, s.template bit_cast_view<uint32_t>());
    }
  }
  add_up(S, A.scores);
  if constexpr (kScaled<Block>) scale_columns(S, K.scales);
}

}  // namespace xeflash::xe
