// out = x W^T + bias for few rows of x: a flat GEMM (FlashDecoding++, Hong et al., 2023). Reading W
// takes the time, so each byte of W is read once, in the order of memory; nothing is written but
// the result. A work-group computes Bn outputs of Br rows; its threads take turns at blocks of Bk
// inputs, and their sums are added in the order of the threads.
#pragma once

#include "products/products.hpp"

namespace xeflash {

template <class Config>
XF_INLINE void linear(const LinearParams& p) {
  constexpr int Br = Config::rows, Bn = Config::outputs, Bk = Config::inputs;
  using T = typename Config::Element;
  allocate_products<Config>();
  const Group::Index group = Group::index(), blocks = (p.rows + Br - 1) / Br;
  const int row = static_cast<int>(group % blocks) * Br;
  const int output = static_cast<int>(group / blocks) * Bn;

  const Rows<const T> x{static_cast<const T*>(p.x), p.x_row, p.rows, row, p.inputs};
  const typename Config::Weights W(p, output);
  Products<Config> sums;
  for (int k = Group::turn() * Bk; k < p.inputs; k += Group::turns * Bk) {
    add_products(sums, x, W, k);  // sums += x[:, k .. k + Bk) W[:, k .. k + Bk)^T
  }
  sums_of_turns(sums, W);
  using Result = typename Config::Result;
  const Rows<Result> out{static_cast<Result*>(p.out), p.out_row, p.rows, row, p.outputs};
  store_products(out, sums, static_cast<const T*>(p.bias), output);
}

}  // namespace xeflash
