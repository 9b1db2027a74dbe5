// A user's change to scores: a C++ expression of s (the score), b, h, q_idx, k_idx (batch, head,
// positions of query and key in their sequences) and of captured arrays and numbers by name. It is
// compiled into the kernel. b, h and captured numbers are C++ numbers, the others are Lanes.
#pragma once

#include <utility>

#include "attention/lane.hpp"

namespace xeflash {
namespace snippet {

using Score = Lane<float, Of::both, true>;
using DualScore = Lane<Dual, Of::both, true>;

// An array that a snippet captured, read at one index per dimension: ints give a number, Lanes give
// a Lane. An index past either end reads the element at that end. An array without dimensions has
// one element.
template <class T, int Rank>
struct Captured {
  CapturedArray array;

  XF_INLINE explicit Captured(const CapturedArray& a) : array(a) {}
  template <class... Index>
    requires((Integers<Index> && ...) && sizeof...(Index) == Rank)
  XF_INLINE auto operator()(const Index&... index) const {
    const auto value = value_at(static_cast<const Stored*>(array.data), place(array, index...));
    if constexpr (std::is_same_v<T, bool>) {
      return made<bool, Index...>(converted<bool, int>(value));
    } else {
      return made<std::conditional_t<std::is_integral_v<T>, int, float>, Index...>(value);
    }
  }
  template <class Index>
    requires(Integers<Index> && Rank == 1)
  XF_INLINE auto operator[](const Index& index) const {
    return (*this)(index);
  }

 protected:
  // Elements of bool lie in memory as bytes.
  using Stored = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;

  // Returns the offset of an element from the first one, in an array of this shape.
  template <class... Index>
  static XF_INLINE auto place(const CapturedArray& a, const Index&... index) {
    return sum_of(std::make_integer_sequence<int, Rank>(), a, index...);
  }

 private:
  template <int... Dim, class... Index>
  static XF_INLINE auto sum_of(std::integer_sequence<int, Dim...>, const CapturedArray& a,
                               const Index&... index) {
    return (0 + ... + element(a, Dim, as<int, Traits<Index>::is_vector>(index)));
  }
  static XF_INLINE int element(const CapturedArray& a, int dim, int i) {
    return (i < 0 ? 0 : at_most(i, a.size[dim] - 1)) * a.stride[dim];
  }
  static XF_INLINE Ints element(const CapturedArray& a, int dim, Ints i) {
    return xeflash::max(at_most(i, a.size[dim] - 1), Ints(0)) * a.stride[dim];
  }
};

// Counts the reads in one evaluation of a snippet. The value of the `chosen` read has slope 1, all
// others have slope 0.
struct Reads {
  int chosen = 0, count = 0;
  Ints place = 0;  // where the element of the chosen read is among the gradients of all captures
};

// A captured array whose gradient is wanted. The gradient is packed, and begins at element `first`
// of all gradients. Reads give Lanes of Duals, always in vectors.
template <class T, int Rank>
struct Learned : Captured<T, Rank> {
  using Captured<T, Rank>::array, Captured<T, Rank>::place;
  CapturedArray gradient;
  int first;
  Reads& reads;

  XF_INLINE Learned(const CapturedArray& a, int first, Reads& reads)
      : Captured<T, Rank>(a), gradient(a), first(first), reads(reads) {
    int elements = 1;
    XF_UNROLL for (int dim = Rank - 1; dim >= 0; --dim) {
      gradient.stride[dim] = elements;
      elements *= a.size[dim];
    }
  }
  template <class... Index>
    requires((Integers<Index> && ...) && sizeof...(Index) == Rank)
  XF_INLINE auto operator()(const Index&... index) const {
    const bool moves = reads.count++ == reads.chosen;
    reads.place = xeflash::select(moves, Ints(place(gradient, index...) + first), reads.place);
    const Floats value(value_at(static_cast<const T*>(array.data), place(array, index...)));
    return Lane<Dual, (Of::neither | ... | Traits<Index>::of), true>(
        DualFloats(value, Floats(moves ? 1.f : 0.f)));
  }
  template <class Index>
    requires(Integers<Index> && Rank == 1)
  XF_INLINE auto operator[](const Index& index) const {
    return (*this)(index);
  }
};
// The type that a snippet's `float` stands for where gradients of captures are computed.
using Real = Lane<Dual, Of::neither, true>;

}  // namespace snippet

// The hook that calls the snippet. Rows and keys past the end get the position of the last one.
template <class Snippet>
struct ScoreMod {
  static constexpr bool kOfUser = true;
  Snippet score_snippet;
  int batch, head, last_q, last_k, q_at, k_at;

  template <class... More>
  XF_INLINE ScoreMod(const FwdParams& p, const Sequence& seq, int h, More&... more)
      : score_snippet(static_cast<const ScoreModParams&>(p).captures, more...),
        batch(seq.batch),
        head(p.first_head + h),
        last_q(seq.sq - 1),
        last_k(seq.sk - 1),
        q_at(seq.q_at),
        k_at(seq.k_at) {}
  template <class S, class I, class J>
  XF_INLINE S score(S s, I q, J k) const {
    return changed(snippet::Score(s), q, k);
  }
  template <class S, class I, class J>
  XF_INLINE void change(S& s, S& slope, I q, J k) const {
    const auto dual = changed(snippet::DualScore(snippet::DualFloats(s, slope)), q, k);
    s = dual.value;
    slope = select(s == S(-kInf), S(0.f), dual.slope);  // a hidden score: P is 0
  }
  // Returns the slope of the changed score over the captured element that has slope 1.
  template <class S, class I, class J>
  XF_INLINE S slope(S s, I q, J k) const {
    S none = 0.f;
    change(s, none, q, k);
    return none;
  }

 private:
  template <class S, class I, class J>
  XF_INLINE auto changed(S s, I q, J k) const {
    using snippet::Lane, snippet::Of;
    const Lane<int, Of::query, !std::is_same_v<I, int>> q_idx(at_most(q, last_q) + q_at);
    const Lane<int, Of::key, !std::is_same_v<J, int>> k_idx(at_most(k, last_k) + k_at);
    return score_snippet(s, batch, head, q_idx, k_idx).native;
  }
};

}  // namespace xeflash
