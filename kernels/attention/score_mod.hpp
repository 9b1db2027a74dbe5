// A user's change to scores: a C++ expression of s (the score), b, h, q_idx, k_idx (batch, head,
// position of query and key in their sequences) and what it captures by name, compiled into the
// kernel. b, h and captured numbers are C++'s own, the others Lanes.
#pragma once

#include <utility>

#include "attention/lane.hpp"

namespace xeflash {
namespace snippet {

using Score = Lane<float, Of::both, true>;
using DualScore = Lane<Dual, Of::both, true>;

// An array that a snippet captured, read at an index or indices: a number at ints, a Lane at Lanes.
// What is past an end reads the element there.
template <class T, int Rank>
struct Captured {
  CapturedArray array;

  XF_INLINE explicit Captured(const CapturedArray& a) : array(a) {}
  template <class... Index>
    requires(Integers<Index...> && sizeof...(Index) == Rank)
  XF_INLINE auto operator()(const Index&... index) const {
    return at(std::make_integer_sequence<int, Rank>(), index...);
  }
  template <class Index>
    requires(Integers<Index> && Rank == 1)
  XF_INLINE auto operator[](const Index& index) const {
    return (*this)(index);
  }

 private:
  // Elements of bool lie in memory as bytes.
  using Stored = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;

  template <int... Dim, class... Index>
  XF_INLINE auto at(std::integer_sequence<int, Dim...>, const Index&... index) const {
    const auto place = (element(Dim, as<int, Traits<Index>::is_vector>(index)) + ...);
    const auto value = value_at(static_cast<const Stored*>(array.data), place);
    if constexpr (std::is_same_v<T, bool>) {
      return made<bool, Index...>(converted<bool, int>(value));
    } else {
      return made<std::conditional_t<std::is_integral_v<T>, int, float>, Index...>(value);
    }
  }
  XF_INLINE int element(int dim, int i) const {
    return (i < 0 ? 0 : at_most(i, array.size[dim] - 1)) * array.stride[dim];
  }
  XF_INLINE Ints element(int dim, Ints i) const {
    return xeflash::max(at_most(i, array.size[dim] - 1), Ints(0)) * array.stride[dim];
  }
};

}  // namespace snippet

// The hook that calls it. Rows and keys past the end are given the last one's position.
template <class Snippet>
struct ScoreMod {
  static constexpr bool kOfUser = true;
  Snippet of_score;
  int batch, head, last_q, last_k;

  XF_INLINE ScoreMod(const FwdParams& p, const Sequence& seq, int h)
      : of_score(static_cast<const ScoreModParams&>(p).captures),
        batch(seq.batch),
        head(h),
        last_q(seq.sq - 1),
        last_k(seq.sk - 1) {}
  template <class S, class I, class J>
  XF_INLINE S score(S s, I q, J k) const {
    return changed(snippet::Score(s), q, k);
  }
  template <class S, class I, class J>
  XF_INLINE void change(S& s, S& slope, I q, J k) const {
    const auto dual = changed(snippet::DualScore(snippet::DualFloats(s, slope)), q, k);
    s = dual.value;
    slope = select(s == S(-kInf), S(0.f), dual.slope);  // it is hidden: P is 0
  }

 private:
  template <class S, class I, class J>
  XF_INLINE auto changed(S s, I q, J k) const {
    using snippet::Lane, snippet::Of;
    const Lane<int, Of::query, !std::is_same_v<I, int>> q_idx(at_most(q, last_q));
    const Lane<int, Of::key, !std::is_same_v<J, int>> k_idx(at_most(k, last_k));
    return of_score(s, batch, head, q_idx, k_idx).native;
  }
};

}  // namespace xeflash
