// What rounding takes from O, kept beside it for the backward pass: Delta = rowsum(dO O) is a small
// difference of large numbers where V has a mean, and needs O as the forward computed it.
#pragma once

#include "attention/work.hpp"

namespace xeflash {

constexpr float kRestUnit = 0x1p-8f;  // with it a rest is no smaller than its type can hold

// Where one key has all of a row's weight, O differs from that key's V by what l has and P, rounded
// to 1, has not (see Exponents). That is no rest: there Delta has to be dP.
template <class T>
constexpr float kLeastRest = std::is_same_v<T, bf16> ? 0x1p-13f : 0x1p-14f;  // of O

// O is what is in memory + kRestUnit rest.
template <class T, class V>
XF_INLINE V rest_of(V O) {
  const V rest = O - rounded<T>(O);
  const auto counts = magnitude(rest) > magnitude(O) * kLeastRest<T>;
  return select(counts, V(rest * (1.f / kRestUnit)), V(0.f));
}

// Columns of row r of a tile, times a factor, as the output of a head.
template <class T, class Output>
XF_INLINE void store_output(const FwdParams& p, const Sequence& seq, int head, int column,
                            int columns, Output& O, int r, float factor) {
  store_row(seq.q_rows<T>(p.o, head, 0).columns(column, columns), O, r, factor);
  if (!p.rest.data) return;
  each_in_row(O, r, 0, [&](auto x, auto) { return rest_of<T>(Floats(x * factor)); });
  store_row(seq.q_rows<T>(p.rest, head, 0).columns(column, columns), O, r, 1.f);
}

}  // namespace xeflash
