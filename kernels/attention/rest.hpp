// The rest of O: what rounding takes from it, stored beside O for the backward pass. Where V has a
// mean, Delta = rowsum(dO O) is a small difference of large numbers, and needs O as the forward
// computed it.
#pragma once

#include "attention/work.hpp"

namespace xeflash {

constexpr float kRestUnit = 0x1p-8f;  // unit of stored rests, so that they do not underflow

// A rest below this part of O counts as 0. Where one key has all of a row's weight, O differs from
// that key's V because l sums P before P is rounded to 1 (see Exponents). That difference must not
// be stored as a rest: Delta has to equal dP there.
template <class T>
constexpr float kLeastRest = std::is_same_v<T, bf16> ? 0x1p-13f : 0x1p-14f;  // of O

// The rest of O, such that O = rounded O + kRestUnit rest.
template <class T, class V>
XF_INLINE V rest_of(V O) {
  const V rest = O - rounded<T>(O);
  const auto counts = magnitude(rest) > magnitude(O) * kLeastRest<T>;
  return select(counts, V(rest * (1.f / kRestUnit)), V(0.f));
}

// Stores columns of row r of a tile, times a factor, as a head's output, and their rest if wanted.
template <class T, class Output>
XF_INLINE void store_output(const FwdParams& p, const Sequence& seq, int head, int query,
                            int column, int columns, Output& O, int r, float factor) {
  store_row(seq.rows_per_query<T>(p.o, head, query).columns(column, columns), O, r, factor);
  if (!p.rest.data) return;
  each_in_row(O, r, 0, [&](auto x, auto) { return rest_of<T>(Floats(x * factor)); });
  store_row(seq.rows_per_query<T>(p.rest, head, query).columns(column, columns), O, r, 1.f);
}

}  // namespace xeflash
