// Few rows on the matrix unit without 2D block messages: whole rows of K and V are read and brought
// into the layout of dpas in registers.
//   S^T = K Q^T   The left operand is K, 16 columns of 8 keys as they lie; Q^T is in shared memory.
//                 Scores go through shared memory to be transposed and, where the threads of a
//                 team share out the columns, to be added up.
//   O += P V      The right operand is V: pairs of keys, interleaved.
#pragma once

#include "xe/mma.hpp"
#include "xe/row_team.hpp"

namespace xeflash::xe {

// Q^T of a thread's D columns in the layout of a right operand, which threads that take turns have
// in common, and the place for its scores of N keys.
template <class T, int R, int D, int N>
struct SharedRight {
  static constexpr int kSteps = round_up(D, kDepth) / kDepth, kTiles = R / 8;
  static constexpr int kBlock = 8 * kLanes;  // dwords
  static constexpr int kQueryBytes = kSteps * kTiles * kBlock * 4;
  using Scores = TeamScores<R, N, Group::sharing * kQueryBytes>;
  static constexpr int kSharedBytes = Group::sharing * kQueryBytes + Scores::kSharedBytes;
  Scores scores;

  static XF_INLINE SharedBlocks<kBlock> query() {
    return {static_cast<uint32_t>(Group::sharer() * kQueryBytes)};
  }
  XF_INLINE simd<T, kDepth * kLanes> block(int r, int step) const {
    auto dwords = query().load(step * kTiles + r);
    return dwords.template bit_cast_view<T>();
  }
};
template <class T, int R, int D, int N>
XF_INLINE void load(SharedRight<T, R, D, N>& A, const Rows<const T>& m) {
  if (Group::turn() == 0) {
    XF_UNROLL for (int step = 0; step < A.kSteps; ++step) {
      XF_UNROLL for (int r = 0; r < A.kTiles; ++r) {
        A.query().store(step * A.kTiles + r, read_transposed<D>(m, r * 8, step * 8));
      }
    }
  }
  Group::meet_turns();
}

// Calls f(dwords of R rows, column) for all columns of the rows that begin at the addresses, in
// parts that fit in a quarter of the registers once they have 16 bits. A part is one message per
// row, of as many dwords as the largest power of two that fits.
template <class T, class E, int D, int Column = 0, int R, class F>
XF_INLINE void each_part_of_rows(const simd<uint64_t, R>& begin, F f) {
  constexpr int kLeft = (D - Column) * sizeof(E) / 4;
  constexpr int kRatio = sizeof(T) / sizeof(E);
  constexpr int kFit = kGrfBytes / 4 / (4 * R) / (kQuantised<E> ? 2 : 1);
  constexpr int kMost = at_most(kLeft, kFit);
  constexpr int kDwords = kMost >= 64   ? 64
                          : kMost >= 32 ? 32
                          : kMost >= 16 ? 16
                          : kMost >= 8  ? 8
                          : kMost >= 4  ? 4
                                        : 2;
  simd<uint32_t, kDwords * kRatio> rows[R];
  XF_UNROLL for (int r = 0; r < R; ++r) {
    const uint64_t address = begin[r];
    rows[r] = widen_in_order<T, E>(load_whole<kDwords>(address));
  }
  f(rows, Column);
  constexpr int kNext = Column + kDwords * 4 / sizeof(E);
  if constexpr (kNext < D) {
    each_part_of_rows<T, E, D, kNext>(begin + kDwords * 4, f);
  }
}

// S = the sum of what all threads of the team have stored, transposed: that is [key][row] in blocks
// of 8 x 8.
template <int R, int N, int Begin>
XF_INLINE void add_up(Tile<R, N>& S, TeamScores<R, N, Begin>& all) {
  all.add_up([&](uint32_t begin, bool is_first) {
    XF_UNROLL for (int key = 0; key < N; key += 8) {
      XF_UNROLL for (int r = 0; r < R; r += 4) {
        const uint32_t first = begin + ((key / 8 * (R / 8) + r / 8) * 64 + r % 8) * 4;
        const simd<float, 4 * kLanes> scores =
            esimd::slm_gather<float, 4 * kLanes, 4>(Offsets<kLanes>(lane_index() * 32) + first);
        auto sum = S.x.template select<4 * kLanes, 1>((key / kLanes * R + r) * kLanes);
        if (is_first)
          sum = scores;
        else
          sum += scores;
      }
    }
  });
}

// S = A K^T over the columns of the whole team, for the rows of K up to K.count.
template <class T, int R, int N, int D, class Block>
XF_INLINE void dot_rows(Tile<R, N>& S, SharedRight<T, R, D, N>& A, const Block& K) {
  constexpr int kTiles = R / 8;
  constexpr int kBlock = SharedRight<T, R, D, N>::kBlock;
  const auto own = A.scores.template of<kBlock>(Group::member());
  const auto begin = addresses<N>(elements(K), 0, 0);
  XF_UNROLL for (int key = 0; key < N; key += 8) {
    simd<float, 8 * kLanes> s[kTiles];  // [key][row]
    const auto multiply_part = [&]<int Dwords>(simd<uint32_t, Dwords>(&keys)[8], int column) {
      constexpr int kPart = at_most(Dwords, kDepth / 2);
      XF_UNROLL for (int c = 0; c < Dwords; c += kPart) {
        simd<uint32_t, 4 * kDepth> block;
        if constexpr (kPart < kDepth / 2) block = 0;
        XF_UNROLL for (int k = 0; k < 8; ++k) {
          block.template select<kPart, 1>(k * kDepth / 2) = part<kPart>(keys[k], c);
        }
        const int step = (column + 2 * c) / kDepth;
        XF_UNROLL for (int r = 0; r < kTiles; ++r) {
          multiply<T>(s[r].template select<8 * kLanes, 1>(0), A.block(r, step),
                      simd<T, 8 * kDepth>(block.template bit_cast_view<T>()), step == 0);
        }
      }
    };
    each_part_of_rows<T, ElementOf<Block>, D>(part<8>(begin, key), multiply_part);
    XF_UNROLL for (int r = 0; r < kTiles; ++r) {
      own.store(key / 8 * kTiles + r, s[r].template bit_cast_view<uint32_t>());
    }
  }
  add_up(S, A.scores);
  if constexpr (kScaled<Block>) scale_columns(S, K.scales);
}

// O += P V for the rows of V up to V.count.
template <class T, int R, int N, int D, class Block>
  requires Group::staged
XF_INLINE void accumulate_rows(Tile<R, D>& O, RegisterLeft<T, R, N> P, const Block& V) {
  if constexpr (kScaled<Block>) scale_columns(P, V.scales, kFactorUnit<ElementOf<Block>>);
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
      XF_UNROLL for (int c = 0; c < 2 * Dwords; c += kLanes) {
        simd<uint16_t, kDepth * kLanes> pairs;
        XF_UNROLL for (int k = 0; k < kDepth; ++k) {
          const simd<uint16_t, 2 * Dwords> row = values[k].template bit_cast_view<uint16_t>();
          pairs.template select<kLanes, 2>(k / 2 * 2 * kLanes + k % 2) = part<kLanes>(row, c);
        }
        XF_UNROLL for (int r = 0; r < R / 8; ++r) {
          multiply<T>(O.block(r, (column + c) / kLanes),
                      simd<T, kDepth * kLanes>(pairs.template bit_cast_view<T>()),
                      P.block(r, key / kDepth), false);
        }
      }
    };
    each_part_of_rows<T, ElementOf<Block>, D>(part<kDepth>(begin, key), multiply_part);
  }
}

}  // namespace xeflash::xe
