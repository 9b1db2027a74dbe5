// Online softmax (FlashAttention-2, Algorithm 1, lines 9-10), in base 2.
#pragma once

#include "attention/params.hpp"
#include "tile/tile.hpp"

namespace xeflash {

// O and l are rescaled only when m grows by more than a slack. P may therefore exceed 1, up to
// 2^kSlack; the final division by l removes this factor.

XF_INLINE float power_of_two(int n) {
  return __builtin_bit_cast(float, static_cast<int32_t>((n + 127) << 23));
}

// The origin of a row: its exponents are scale_log2 (S - base) - top.
template <class V>
struct Origin {
  V base, top;
};

// P = exp(S - m), computed as 2^(scale_log2 (S - m) - headroom).
//   Where m is near 0 the exponent is one multiply-add, scale_log2 S - top: the rounding error of
//   top is a factor that all P of the row and l share. Far from 0 that factor or scale_log2 S would
//   leave the range of fp32: there S - m is computed first, which is exact.
//   The headroom is for 2^kSlack times 2^24 keys: l <= 1, so that O is no larger than V. The part
//   of it that exceeds kExp2Headroom is added to top, and costs exponents some fractional bits:
//   fp32 has none to spare, and fp16 could not hold so small a P, but its V is small.
struct Exponents {
  static constexpr float kFar = 0x1p12f;  // up to this top, a P of 1 is rounded to 1 in 16 bits
  float unit, scale_log2, slack;          // S and slack are in `unit`
  int slack_log2, headroom;

  XF_INLINE float least() const { return static_cast<float>(headroom - kExp2Headroom); }
  // Returns the largest log2 P that does not ask for another m.
  XF_INLINE float limit() const { return static_cast<float>(slack_log2) - least(); }

  XF_INLINE Exponents(float unit, int slack_log2, int headroom)
      : unit(unit),
        scale_log2(unit * kLog2e < kMostFinite ? unit * kLog2e : kMostFinite),
        slack(static_cast<float>(slack_log2) / scale_log2),
        slack_log2(slack_log2),
        headroom(headroom) {
    // This keeps kNoScore + slack below every maximum if the scale is near 0.
    if (slack > kMostFinite / 2) slack = kMostFinite / 2;
  }

  template <class V>
  XF_INLINE V top(const V& m) const {
    return m * scale_log2 + least();
  }
  template <class Max>
  XF_INLINE Max tops(const Max& m) const {
    return map([&](auto x) { return top(x); }, m);
  }
  template <class V>
  XF_INLINE Origin<V> origin(const V& m) const {
    const V near = top(m);
    const auto is_far = magnitude(near) > kFar;
    return {select(is_far, m, V(0.f)), select(is_far, V(least()), near)};
  }
  // Returns exp(from - to) of two maxima.
  template <class V>
  XF_INLINE V decay(const V& from, const V& to) const {
    const Origin<V> a = origin(from), b = origin(to);
    return exp2(V((a.base - b.base) * scale_log2 + (a.top - b.top)));
  }
  // Returns a function that gives exp(from - to) of the maxima of all rows.
  XF_INLINE auto decays() const {
    return [this](const auto& from, const auto& to) {
      return map([&](auto a, auto b) { return decay(a, b); }, from, to);
    };
  }
  // Subtracts m from the scores of rows that are far from 0; returns what is left to subtract.
  template <class Scores, class Max>
  XF_INLINE Max relative(Scores& S, const Max& m) const {
    Max left = tops(m);
    if (any_beyond(left, kFar)) {
      S -= map([&](auto x) { return origin(x).base; }, m);
      left = map([&](auto x) { return origin(x).top; }, m);
    }
    return left;
  }
};

template <class Config>
XF_INLINE Exponents exponents_of(const FwdParams& p) {
  constexpr bool takes_headroom = std::is_same_v<typename Config::Element, bf16>;
  const float unit = Config::ScoreVariant::kIdentity ? p.scale : 1.f;
  return {unit, Config::slack, takes_headroom ? kHeadroom : kExp2Headroom};
}

// P = exp(S - m), l += rowsum P. exp2 has a polynomial of this degree.
template <int Degree, class Probs, class Scores, class Max, class Sum>
XF_INLINE void exp_and_sum(Probs& P, Scores& S, const Max& m, Sum& l, const Exponents& e) {
  const Max top = e.relative(S, m);
  exp2_and_sum<Degree>(P, log_probs(S, e.scale_log2, top), l);
}

template <int Degree, class Probs, class Scores, class Output, class Max, class Sum>
XF_INLINE void online_softmax(Probs& P, Scores& S, Output& O, Max& m, Sum& l, const Exponents& e) {
  const Max top = e.tops(m);
  auto X = log_probs(S, e.scale_log2, top);  // S - m, in powers of two, of rows that are near 0
  if (any_beyond(top, e.kFar) || any_above(X, e.limit())) {
    const Max larger = max(m, row_max(S));  // m_new = max(m, rowmax S)
    const Max m_new =
        map([&](auto a, auto b) { return select(a - b > decltype(a)(e.slack), a, b); }, larger, m);
    const Max alpha = e.decays()(m, m_new);
    l *= alpha;  // l = exp(m - m_new) l
    O *= alpha;  // O = exp(m - m_new) O
    m = m_new;
    X = log_probs(S, e.scale_log2, e.relative(S, m));
  }
  exp2_and_sum<Degree>(P, X, l);  // P = exp(S - m), l += rowsum P
}

// The softmax of a decoding kernel: the maximum that it begins with, a step, and whether its sums
// may turn out unusable (kCanFail). OnlineSoftmax never fails.
struct OnlineSoftmax {
  static constexpr bool kCanFail = false;
  static XF_INLINE float first_max(const FwdParams&, const Exponents&) { return kNoScore; }
  template <int Degree, class Probs, class Scores, class Output, class Max, class Sum>
  static XF_INLINE void step(Probs& P, Scores& S, Output& O, Max& m, Sum& l, const Exponents& e) {
    online_softmax<Degree>(P, S, O, m, l, e);
  }
};

// Flash-Decoding++ (Hong et al., 2023): all rows use one value that is fixed beforehand in place of
// their maximum, so that blocks of keys do not wait for each other and nothing is rescaled. Where a
// row's sum shows that the value was too far from its maximum, the work-item computes its rows
// again with OnlineSoftmax.
struct UnifiedMax {
  static constexpr bool kCanFail = true;
  static constexpr int kLeast = -40, kMost = 20;  // powers of two
  static XF_INLINE float first_max(const FwdParams& p, const Exponents& e) {
    return p.unified_max / e.unit;
  }
  template <int Degree, class Probs, class Scores, class Output, class Max, class Sum>
  static XF_INLINE void step(Probs& P, Scores& S, Output&, Max& m, Sum& l, const Exponents& e) {
    exp_and_sum<Degree>(P, S, m, l, e);  // P = exp(S - m), l += rowsum P
  }
  static XF_INLINE bool is_near(float l, const Exponents& e) {
    return l >= power_of_two(kLeast - e.headroom) && l <= power_of_two(kMost - e.headroom);
  }
};

// The result of a row's softmax: its sum of exp(S) is 2^headroom l exp(m + ln(2) m_log2), in
// natural units. V is a number or a vector of numbers.
template <class V>
struct RowState {
  V m, m_log2, l;
  int headroom;
  V weight = V(1.f);  // the factor that O needs beside 1 / l
  V joined = V(0.f);  // the part of l that was added last

  XF_INLINE RowState(V m, V l, int headroom) : m(m), m_log2(0.f), l(l), headroom(headroom) {}
  // From a sum l relative to m_score, which is in units of S.
  XF_INLINE RowState(V m_score, V l, const Exponents& e) : l(l), headroom(e.headroom) {
    const Origin<V> origin = e.origin(m_score);
    m = origin.base * e.unit;
    m_log2 = origin.top - e.least();
  }

  // Adds a key without a value: a sink's logit, or the log-sum-exp of keys whose output is in
  // memory. O keeps its scale, and is rounded once less, unless the sink is far above all keys: the
  // LSE would then be a difference of large numbers.
  XF_INLINE void add_sink(V logit) {
    constexpr float kFarSink = 8.f;
    const V own = select(l == 0.f, V(kNoScore), V(m + m_log2 * kLn2));
    m = select(logit - own > V(kFarSink), logit, own);
    m_log2 = V(0.f);
    const V kept = exp2(V((own - m) * kLog2e));
    joined = exp2(V((logit - m) * kLog2e)) * power_of_two(-headroom);
    l = l * kept + joined;
    weight *= kept;
  }
  // Returns the share of the last add_sink in the sum of all weights.
  XF_INLINE V share_of_joined() const { return select(l == 0.f, V(0.f), V(divide(joined, l))); }
  // Returns factor / l.
  XF_INLINE V normaliser(float factor = 1.f) const {
    return select(l == 0.f, V(0.f), V(divide(V(weight * factor), l)));
  }
  XF_INLINE V log_sum_exp(float empty) const {
    const V sum = l * power_of_two(headroom);
    return select(l == 0.f, V(empty), V(m + (m_log2 + log2(sum)) * kLn2));
  }
};

}  // namespace xeflash
