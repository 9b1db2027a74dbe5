// Online softmax (FlashAttention-2, Algorithm 1, lines 9-10), in base 2.
#pragma once

#include "attention/params.hpp"
#include "tile/tile.hpp"

namespace xeflash {

// O and l are rescaled only when m grows by more than a slack: P may then exceed 1, up to 2^slack,
// and the division by l at the end takes it out again.
constexpr float kSlack = 8.f;

// Degree is that of exp2's polynomial.
template <int Degree, class Probs, class Scores, class Output, class Max, class Sum>
XF_INLINE void online_softmax(Probs& P, const Scores& S, Output& O, Max& m, Sum& l,
                              float scale_log2, float slack = kSlack) {
  const auto m_new = max(m, row_max(S) * scale_log2);  // m_new = max(m, rowmax S)
  if (any_above(m_new, m, slack)) {
    const auto alpha = exp2(m - m_new);
    l *= alpha;  // l = exp(m - m_new) l
    O *= alpha;  // O = exp(m - m_new) O
    m = m_new;
  }
  exp2_and_sum<Degree>(P, S, scale_log2, m, l);  // P = exp(S - m), l += rowsum P
}

// What a decoding kernel may be made with: the maximum that it begins with, a step, and whether the
// sums that came out can be used.
struct OnlineSoftmax {
  static constexpr bool kCanFail = false;
  static XF_INLINE float first_max(const FwdParams&) { return kNoScore; }
  template <int Degree, class Probs, class Scores, class Output, class Max, class Sum>
  static XF_INLINE void step(Probs& P, const Scores& S, Output& O, Max& m, Sum& l, float scale_log2,
                             float slack) {
    online_softmax<Degree>(P, S, O, m, l, scale_log2, slack);
  }
};

// Flash-Decoding++ (Hong et al., 2023): a maximum known beforehand for all rows, so that blocks of
// keys do not wait for each other and nothing is rescaled. It need not be the maximum: a row whose
// sum shows that it was too far away has to be computed again, with the true one.
struct UnifiedMax {
  static constexpr bool kCanFail = true;
  static constexpr float kLeast = 0x1p-40f, kMost = 0x1p20f;
  static XF_INLINE float first_max(const FwdParams& p) { return p.unified_max * kLog2e; }
  template <int Degree, class Probs, class Scores, class Output, class Max, class Sum>
  static XF_INLINE void step(Probs& P, const Scores& S, Output&, Max& m, Sum& l, float scale_log2,
                             float) {
    exp2_and_sum<Degree>(P, S, scale_log2, m, l);  // P = exp(S - m), l += rowsum P
  }
  static XF_INLINE bool is_near(float l) { return l >= kLeast && l <= kMost; }
};

}  // namespace xeflash
