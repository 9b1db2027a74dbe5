// A team is the threads of one tile of rows whose O is too wide for one thread's registers. Each
// thread owns some columns of O and scores some keys of a block; then each of them needs the whole
// P.
#pragma once

#include "xe/left.hpp"

namespace xeflash::xe {

// The place in shared memory, from `Begin` on, where the parts of P of a block of N keys come
// together, with the row maxima that each part is relative to. Where the threads do not meet to
// stage K or V either, two places are used in turn, so that they meet only once for each block.
template <class T, int R, int N, int Begin>
struct Joint {
  static constexpr int kKeys = N / Group::team;  // of a thread
  using Whole = RegisterLeft<T, R, N>;
  using Part = Left<T, R, kKeys, TeamPart>;
  static constexpr int kPartBytes = R * Part::kColumns * sizeof(T), kMaxBytes = R * 4;
  static constexpr int kTeamBytes = Group::team * (kPartBytes + kMaxBytes);
  static constexpr int kPlaceBytes = Group::tiles * kTeamBytes;
  static constexpr bool kInTurn = !Group::staged;
  static constexpr int kSharedBytes = Group::team > 1 ? (kInTurn ? 2 : 1) * kPlaceBytes : 0;
  static_assert(Group::team == 1 || kKeys % kLanes == 0);
  uint32_t place = 0;  // or kPlaceBytes

  XF_INLINE uint32_t begin() const {
    return Begin + place + static_cast<uint32_t>(Group::tile() * kTeamBytes);
  }
  XF_INLINE SharedBlocks<kPartBytes / 4> parts() const { return {begin()}; }
  XF_INLINE SharedBlocks<R> maxima() const { return {begin() + Group::team * kPartBytes}; }

  XF_INLINE void give(Part P, ColVec<R> m) const {
    parts().store(Group::member(), P.x.template bit_cast_view<uint32_t>());
    maxima().store(Group::member(), m.x.template bit_cast_view<uint32_t>());
  }
  XF_INLINE void take(Part& P, ColVec<R>& m, int thread) const {
    auto p_bits = parts().load(thread);
    P.x = p_bits.template bit_cast_view<T>();
    m = value(thread);
  }
  XF_INLINE ColVec<R> value(int thread) const {
    auto bits = maxima().load(thread);
    return simd<float, R>(bits.template bit_cast_view<float>());
  }
  // A thread calls this once it has taken all parts.
  XF_INLINE void advance() {
    if constexpr (kInTurn) place ^= kPlaceBytes;
  }
  // Returns P of the whole block, from the part that each thread has. If the row maxima of the
  // parts differ, all parts are scaled to the largest; those with smaller ones are then rounded a
  // second time.
  template <class Own, class Output, class Decay>
  XF_INLINE decltype(auto) all(const Own& own, Output& O, ColVec<R>& m, ColSum<R>& l,
                               const Decay& decay) {
    if constexpr (Group::team == 1) {
      return (own);
    } else {
      give(own, m);
      Group::meet_team();
      Part parts[Group::team];
      ColVec<R> maxima[Group::team], least = m, most = m;
      XF_UNROLL for (int i = 0; i < Group::team; ++i) {
        take(parts[i], maxima[i], i);
        least.x = esimd::min<float>(least.x, maxima[i].x);
        most.x = esimd::max<float>(most.x, maxima[i].x);
      }
      advance();
      if ((least.x < most.x).any()) {
        XF_UNROLL for (int i = 0; i < Group::team; ++i) parts[i] *= decay(maxima[i], most);
        const ColVec<R> alpha = decay(m, most);
        l *= alpha;
        O *= alpha;
        m = most;
      }
      Whole P;
      XF_UNROLL for (int i = 0; i < Group::team; ++i) insert(P, parts[i], i * kKeys);
      return P;
    }
  }
  // l becomes its sum over the team.
  XF_INLINE void add_up(ColSum<R>& l) const {
    if constexpr (Group::team > 1) {
      ColVec<R> own = l;
      if constexpr (!kInTurn) Group::meet();
      maxima().store(Group::member(), own.x.template bit_cast_view<uint32_t>());
      Group::meet_team();
      ColVec<R> sum(0.f);
      XF_UNROLL for (int i = 0; i < Group::team; ++i) sum += value(i);
      l = sum;
    }
  }
};

// Puts `columns` into P, from column `column` on.
template <class T, int R, int N, int C, int Width>
XF_INLINE void insert(RegisterLeft<T, R, N>& P, const RegisterLeft<T, R, C, Width>& columns,
                      int column) {
  if constexpr (Width == RegisterLeft<T, R, N>::kWidth) {
    P.x.template select<R * C, 1>(column * R) = columns.x;
  } else {
    XF_UNROLL for (int r = 0; r < R; ++r) {
      P.x.template select<C, 1>(P.offset(r, column)) = part<C>(columns.x, columns.offset(r, 0));
    }
  }
}

// A left operand of which each thread of a team makes some of the columns: they come together in
// shared memory from `Begin` on. Two places are used in turn, so that the threads meet only once
// for each operand.
template <class T, int R, int N, int Begin>
struct Pooled {
  using Part = Left<T, R, N / Group::team, TeamPart>;
  using Whole = RegisterLeft<T, R, N>;
  static constexpr int kPartBytes = R * Part::kColumns * sizeof(T);
  static constexpr int kPlaceBytes = Group::tiles * Group::team * kPartBytes;
  static constexpr int kSharedBytes = Group::team > 1 ? 2 * kPlaceBytes : 0;
  static_assert(Group::team == 1 || N / Group::team % kLanes == 0);
  uint32_t place = 0;  // or kPlaceBytes

  XF_INLINE SharedBlocks<kPartBytes / 4> parts() const {
    return {Begin + place + static_cast<uint32_t>(Group::tile() * Group::team * kPartBytes)};
  }
  XF_INLINE void give(Part own) const {
    if constexpr (Group::team > 1)
      parts().store(Group::member(), own.x.template bit_cast_view<uint32_t>());
  }
  // Returns the whole operand. A thread calls this after the team has met.
  XF_INLINE decltype(auto) all(const Part& own) {
    if constexpr (Group::team == 1) {
      return (own);
    } else {
      Whole P;
      XF_UNROLL for (int i = 0; i < Group::team; ++i) {
        auto bits = parts().load(i);
        if constexpr (Part::kWidth == Whole::kWidth) {  // parts lie one after the other
          constexpr int kElements = kPartBytes / sizeof(T);
          P.x.template select<kElements, 1>(i * kElements) = bits.template bit_cast_view<T>();
        } else {
          Part one;
          one.x = bits.template bit_cast_view<T>();
          insert(P, one, i * (N / Group::team));
        }
      }
      place ^= kPlaceBytes;
      return P;
    }
  }
};

// A tile that one team of a pair hands to the other, in shared memory from `Begin` on. Two places
// are used in turn, so that the pair meets only once for each tile.
template <int R, int C, int Begin>
struct Handed {
  static constexpr int kChunks = Tile<R, C>::kChunks, kBytes = R * kChunks * kLanes * 4;
  static constexpr int kPlaceBytes = Group::tiles * Group::team * kBytes;
  static constexpr int kSharedBytes = Group::roles > 1 ? 2 * kPlaceBytes : 0;
  uint32_t place = 0;  // or kPlaceBytes

  XF_INLINE SharedBlocks<8 * kLanes> rows() const {
    return {Begin + place +
            static_cast<uint32_t>((Group::tile() * Group::team + Group::member()) * kBytes)};
  }
  XF_INLINE void give(const Tile<R, C>& t) {
    if constexpr (Group::roles > 1) {
      XF_UNROLL for (int i = 0; i < kChunks * R / 8; ++i) {
        simd<float, 8 * kLanes> x = part<8 * kLanes>(t.x, i * 8 * kLanes);
        rows().store(i, x.template bit_cast_view<uint32_t>());
      }
      place ^= kPlaceBytes;
    }
  }
  // Returns the tile. A thread calls this after the pair has met.
  XF_INLINE Tile<R, C> take() {
    Tile<R, C> t;
    XF_UNROLL for (int i = 0; i < kChunks * R / 8; ++i) {
      auto bits = rows().load(i);
      t.x.template select<8 * kLanes, 1>(i * 8 * kLanes) = bits.template bit_cast_view<float>();
    }
    place ^= kPlaceBytes;
    return t;
  }
};

template <class T, int R, int C, int Width>
XF_INLINE void operator*=(RegisterLeft<T, R, C, Width>& P, const ColVec<R>& s) {
  XF_UNROLL for (int c = 0; c < C; c += Width) {
    XF_UNROLL for (int r = 0; r < R; ++r) {
      auto row = P.x.template select<Width, 1>(P.offset(r, c));
      row =
          esimd::convert<T>(simd<float, Width>(esimd::convert<float>(simd<T, Width>(row)) * s[r]));
    }
  }
}

}  // namespace xeflash::xe
