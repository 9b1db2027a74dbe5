// The threads of a team tell each other nothing here: one work-item computes all of a tile.
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

// An operand of which the threads of a team compute parts.
template <class T, int R, int N, int Begin>
struct Pooled {
  XF_INLINE void give(const Left<T, R, N>&) {}
  XF_INLINE const Left<T, R, N>& all(const Left<T, R, N>& own) { return own; }
};

// A tile that one thread of a pair hands to the other. There are no pairs here.
template <int R, int C, int Begin>
struct Handed {
  XF_INLINE void give(const Tile<R, C>&) {}
};

}  // namespace xeflash::cpu
