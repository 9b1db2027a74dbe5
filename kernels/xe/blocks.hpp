// Blocks of a product on Xe: the sums of a block are a tile in registers.
#pragma once

#include "xe/mma.hpp"
#include "xe/results.hpp"
#include "xe/slope.hpp"

namespace xeflash::xe {

template <class Config>
struct BlockSums {
  Tile<Config::rows, Config::columns> x;
  XF_INLINE BlockSums() { fill(x, 0.f); }
};

template <class Config>
XF_INLINE void allocate_block() {
  using T = typename Config::Element;
  allocate_shared<Tile<Config::rows, Config::columns>,
                  shared_bytes<Right<T, Config::inputs, Config::columns>>()>();
}

template <class Config, class T>
XF_INLINE void add_block(BlockSums<Config>& C, const Rows<const T>& A, const Rows<const T>& B,
                         int k) {
  Left<T, Config::rows, Config::inputs> a;
  load(a, A.columns(k, k + Config::inputs));
  const Right<T, Config::inputs, Config::columns> b(B.from(k));
  mma_AB(C.x, a, b);
  Group::meet_staged();
}

// Sums in memory are padded to whole blocks, so all columns of a block may be read and written.
template <class Config>
XF_INLINE Rows<float> whole(const Rows<float>& sums) {
  return {sums.data, sums.stride, sums.count, sums.first, Config::columns};
}
template <class Config>
XF_INLINE void add_to(const Rows<float>& sums, const BlockSums<Config>& C, bool adds) {
  add(whole<Config>(sums), C.x, ColVec<Config::rows>(adds ? 1.f : 0.f));
}
template <class Config>
XF_INLINE void add_from(BlockSums<Config>& C, const Rows<float>& sums) {
  Tile<Config::rows, Config::columns> there;
  load(there, Rows<const float>{sums.data, sums.stride, sums.count, sums.first, Config::columns});
  C.x += there;
}
template <class T, class Config>
XF_INLINE void store_block(const Rows<T>& out, const BlockSums<Config>& C) {
  if (out.width >= Config::columns)
    store(out, C.x);
  else
    store(RaggedRows<T>(out), C.x);
}

}  // namespace xeflash::xe
