// A tile that another thread or another kernel computes: operations on it do nothing here. So the
// same loop serves threads that compute all tiles of an algorithm and threads that compute some.
#pragma once

#include "tile/tile.hpp"

namespace xeflash {

struct Elsewhere {
  XF_INLINE Elsewhere all() const { return {}; }
};

struct BlocksElsewhere {
  template <class Matrix>
  XF_INLINE explicit BlocksElsewhere(const Matrix&) {}
  XF_INLINE void bring(int) const {}
  XF_INLINE Elsewhere brought(int) const { return {}; }
};

template <bool kHere, class Tile>
using Here = std::conditional_t<kHere, Tile, Elsewhere>;

XF_INLINE void fill(Elsewhere&, float) {}
template <class Matrix>
XF_INLINE void load(Elsewhere&, const Matrix&) {}
template <class Left, class Right>
XF_INLINE void mma_ABt(Elsewhere&, const Left&, const Right&) {}
template <class Left, class Right>
XF_INLINE void mma_AB(Elsewhere&, const Left&, const Right&) {}

}  // namespace xeflash
