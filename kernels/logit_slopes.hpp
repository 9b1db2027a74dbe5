// The gradient D of a loss over the products x W^T, for a block of the vocabulary. The logits z are
// recomputed as in linear_cross_entropy, or read where they are in memory, and
//   P = exp(z - m - log l),   D = (of_p P - of_target [target] - of_all) dz / d(x W^T)
// D is stored as it is and transposed, for dx = D W and dW = D^T x (matmul_add.hpp).
#pragma once

#include "products/logits.hpp"

namespace xeflash {

template <class Config>
XF_INLINE void logit_slopes(const CrossEntropyParams& p) {
  constexpr int Br = Config::rows, Bn = Config::columns;
  using D = Slope<typename Config::Element>;
  each_block<Config>(p, [&](const LogitRows<Config>& rows, int worker) {
    const KeptInputs<typename Config::Element, Br, Config::inputs> x(
        p.kept, worker, p.logits ? rows.x().columns(0, 0) : rows.x());
    const int row = rows.row;
    const auto values = [&](const float* of, float otherwise) {
      return load_line<Br>(of + row, p.rows - row, otherwise);
    };
    const auto targets = targets_of<Br>(p.target, row, p.rows, p.first + p.columns);
    const ColVec<Br> m = values(p.state, kMostFinite), log_l = values(p.state + p.all_rows, 0.f);
    const ColVec<Br> of_p = values(p.of_p, 0.f), of_target = values(p.of_target, 0.f);
    const ColVec<Br> of_all = values(p.of_all, 0.f);
    for (int j = rows.begin(); j < rows.end(); j += Bn) {
      Tile<Br, Bn> S;
      if (p.logits)
        load(S, Rows<const float>{p.logits + p.first + j, p.logits_row, p.rows, row});
      else
        rows.logits(S, x, j);
      slopes_of(S, m, log_l, of_p, of_target, of_all, targets, p.first, j, p);  // S = D
      if (row >= p.rows) continue;
      if (p.slopes) {
        store(Rows<D>{static_cast<D*>(p.slopes) + j, p.slopes_row, row + Br, row}, S);
      }
      if (p.turned) {
        store_turned(Rows<D>{static_cast<D*>(p.turned) + row, p.turned_row, j + Bn, j}, S);
      }
    }
  });
}

// Computes the gradient of the bias, which is the sum of D over its rows, with kLanes columns per
// thread.
template <class Config>
XF_INLINE void sums_of_slopes(const CrossEntropyParams& p) {
  constexpr int kChain = 64;  // rows that are added before their sum joins the total
  using T = typename Config::Element;
  const int column = static_cast<int>(Group::index()) * kLanes;
  if (column >= p.columns) return;
  const auto* D = static_cast<const Slope<T>*>(p.slopes) + column;
  Floats total = 0.f;
  for (int first = 0; first < p.rows; first += kChain) {
    Floats sum = 0.f;
    for (int row = first; row < p.rows && row < first + kChain; ++row) {
      sum += lanes_at(D + row * p.slopes_row);
    }
    total += sum;
  }
  if (p.adds) total += lanes_at(p.bias_sums + column);
  store_lanes(p.bias_sums + column, total, kLanes);
  if (p.bias_slopes) {
    store_lanes(static_cast<T*>(p.bias_slopes) + column, total, p.columns - column);
  }
}

}  // namespace xeflash
