// out = A B, or sums + A B, with A and B row-major. Each tile of a work-group is a block of Br rows
// and Bn columns, and takes Bk inputs, the axis that is summed over, at a time.
#pragma once

#include "products/blocks.hpp"

namespace xeflash {

template <class Config>
XF_INLINE void matmul_add(const MatmulAddParams& p) {
  constexpr int Br = Config::rows, Bn = Config::columns, Bk = Config::inputs;
  using T = typename Config::Element;
  allocate_block<Config>();
  const int across = (p.columns + Bn - 1) / Bn,
            blocks = (p.rows + Group::tiles * Br - 1) / (Group::tiles * Br);
  for (int i = static_cast<int>(Group::index()); i < across * blocks; i += p.workers) {
    const int row = (i / across * Group::tiles + Group::tile()) * Br, column = i % across * Bn;
    if (!Group::in_step && row >= p.rows) continue;
    const Rows<const Slope<T>> A{static_cast<const Slope<T>*>(p.a), p.a_row, p.rows, row, p.inputs};
    const Rows<const T> B{static_cast<const T*>(p.b) + column, p.b_row, p.inputs, 0,
                          p.columns - column};
    BlockSums<Config> C;
    for (int k = 0; k < p.inputs; k += Bk) add_block(C, A, B, k);  // C += A[:, k ..) B[k .., :)
    if (row >= p.rows) continue;
    const Rows<float> sums{p.sums + column, p.sums_row, p.rows, row, p.columns - column};
    if (!p.out) {
      add_to(sums, C, p.adds);
    } else {
      if (p.adds) add_from(C, sums);
      store_block(
          Rows<T>{static_cast<T*>(p.out) + column, p.out_row, p.rows, row, p.out_columns - column},
          C);
    }
  }
}

}  // namespace xeflash
