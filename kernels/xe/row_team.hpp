// A team of threads that share out the columns of the heads of one query: each multiplies its
// columns of Q and K, and owns columns of V and O in proportion. Their scores are added up, so that
// all of K and V is read once.
#pragma once

#include "xe/group.hpp"

namespace xeflash::xe {

// The place in shared memory, from `Begin` on, where each thread puts its scores of N keys.
template <int R, int N, int Begin>
struct TeamScores {
  static constexpr int kBytes = R * N * 4;
  static constexpr int kPlaces = Group::team == 1 ? 1 : 2;  // one is filled while the other is read
  static constexpr int kSharedBytes = Group::threads * kPlaces * kBytes;
  int place = 0;

  template <int Dwords>
  XF_INLINE SharedBlocks<Dwords> of(int thread) const {
    const int first = Group::thread() - Group::member();  // of the team
    return {static_cast<uint32_t>(Begin + (place * Group::threads + first + thread) * kBytes)};
  }
  // Calls sum(begin, is_first) for the scores that each thread of the team has stored.
  template <class Sum>
  XF_INLINE void add_up(Sum sum) {
    Group::meet();
    XF_UNROLL for (int i = 0; i < Group::team; ++i) sum(of<1>(i).begin, i == 0);
    if constexpr (Group::team > 1) place ^= 1;
  }
};

// A thread's columns of Q, and the place for the scores of its team.
template <int R, int N, class Own>
struct TeamLeft {
  using Scores = TeamScores<R, N, Own::kSharedBytes>;
  static constexpr int kSharedBytes = Own::kSharedBytes + Scores::kSharedBytes;
  Own own;
  Scores scores;
};
template <int R, int N, class Own, class Rows>
XF_INLINE void load(TeamLeft<R, N, Own>& A, const Rows& m) {
  load(A.own, m);
}

// S = A K^T over the columns of the whole team.
template <int R, int N, class Own, class Block>
XF_INLINE void dot_rows(Tile<R, N>& S, TeamLeft<R, N, Own>& A, const Block& K) {
  constexpr int kChunk = R * kLanes;
  dot_rows(S, A.own, K);
  XF_UNROLL for (int c = 0; c < S.kChunks; ++c) {
    auto chunk = S.chunk(c);
    A.scores.template of<kChunk>(Group::member())
        .store(c, chunk.template bit_cast_view<uint32_t>());
  }
  A.scores.add_up([&](uint32_t begin, bool is_first) {
    XF_UNROLL for (int c = 0; c < S.kChunks; ++c) {
      auto bits = SharedBlocks<kChunk>{begin}.load(c);
      auto sum = S.x.template select<kChunk, 1>(c * kChunk);
      const simd<float, kChunk> scores = bits.template bit_cast_view<float>();
      if (is_first)
        sum = scores;
      else
        sum += scores;
    }
  });
}

}  // namespace xeflash::xe
