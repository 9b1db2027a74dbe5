// The residual of O: what rounding takes from it, stored beside O for the backward pass. Where V
// has a mean, Delta = rowsum(dO O) is a small difference of large numbers, and needs O as the
// forward computed it.
#pragma once

#include "attention/work.hpp"

namespace xeflash {

constexpr float kResidualUnit = 0x1p-8f;  // unit of stored residuals, so that they do not underflow

// A residual below this part of O counts as 0. Where one key has all of a row's weight, O differs
// from that key's V because l sums P before P is rounded to 1 (see Exponents). That difference must
// not be stored as a residual: Delta has to equal dP there.
template <class T>
constexpr float kLeastResidual = std::is_same_v<T, bf16> ? 0x1p-13f : 0x1p-14f;  // of O

// Returns the residual of O, such that O = rounded O + kResidualUnit residual.
template <class T, class V>
XF_INLINE V residual_of(V O) {
  const V residual = O - rounded<T>(O);
  const auto counts = magnitude(residual) > magnitude(O) * kLeastResidual<T>;
  return select(counts, V(residual * (1.f / kResidualUnit)), V(0.f));
}

// Stores columns of row r of a tile, times a factor, as a head's output, and their residual if
// wanted.
template <class T, class Output>
XF_INLINE void store_output(const FwdParams& p, const Sequence& seq, int head, int query,
                            int column, int columns, Output& O, int r, float factor) {
  store_row(seq.rows_per_query<T>(p.o, head, query).columns(column, columns), O, r, factor);
  if (!p.residual.data) return;
  each_in_row(O, r, 0, [&](auto x, auto) { return residual_of<T>(Floats(x * factor)); });
  store_row(seq.rows_per_query<T>(p.residual, head, query).columns(column, columns), O, r, 1.f);
}

}  // namespace xeflash
