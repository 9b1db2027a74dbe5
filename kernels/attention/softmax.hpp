// Online softmax (FlashAttention-2, Algorithm 1, lines 9-10), in base 2.
#pragma once

#include "tile/tile.hpp"

namespace xeflash {

// O and l are rescaled only when m grows by more than this: P may then exceed 1, up to 2^kSlack,
// and the division by l at the end takes it out again.
constexpr float kSlack = 8.f;

// Degree is that of exp2's polynomial.
template <int Degree, class Probs, class Scores, class Output, class Max, class Sum>
XF_INLINE void online_softmax(Probs& P, const Scores& S, Output& O, Max& m, Sum& l,
                              float scale_log2) {
  const auto m_new = max(m, row_max(S) * scale_log2);  // m_new = max(m, rowmax S)
  if (any_above(m_new, m, kSlack)) {
    const auto alpha = exp2(m - m_new);
    l *= alpha;  // l = exp(m - m_new) l
    O *= alpha;  // O = exp(m - m_new) O
    m = m_new;
  }
  exp2_and_sum<Degree>(P, S, scale_log2, m, l);  // P = exp(S - m), l += rowsum P
}

}  // namespace xeflash
