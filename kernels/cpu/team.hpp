// What the threads of a team tell each other: here one work-item makes all of a tile.
#pragma once

#include "cpu/left.hpp"

namespace xeflash::cpu {

template <class T, int R, int N, int Begin>
struct Joint {
  template <class Output, class Max, class Sum, class Decay>
  XF_INLINE const Left<T, R, N>& all(const Left<T, R, N>& P, Output&, Max&, Sum&,
                                     const Decay&) const {
    return P;
  }
  template <class Sum>
  XF_INLINE void add_up(Sum&) const {}
};

// The place where the parts that the threads of a team make come together.
template <class T, int R, int N, int Begin>
struct Pooled {
  XF_INLINE void give(const Left<T, R, N>&) {}
  XF_INLINE const Left<T, R, N>& all(const Left<T, R, N>& own) { return own; }
};

// The tile that one of a pair hands to the other: there are no pairs here.
template <int R, int C, int Begin>
struct Handed {
  XF_INLINE void give(const Tile<R, C>&) {}
};

}  // namespace xeflash::cpu
