// A user's change to scores: a C++ expression of s (the score), b, h, q_idx, k_idx (batch, head,
// position of query and key in their sequences) and what it captures by name, compiled into the
// kernel. One of q_idx and k_idx is an int, the other a vector of them, s a vector of floats.
#pragma once

#include <utility>

#include "attention/work.hpp"

namespace xeflash {

// An array that a snippet captured, read at an index or indices, each an int or a vector of them.
// What is past an end reads the element there.
template <class T, int Rank>
struct Captured {
  CapturedArray array;

  XF_INLINE explicit Captured(const CapturedArray& a) : array(a) {}
  template <class... Index>
  XF_INLINE auto operator()(Index... index) const {
    static_assert(sizeof...(Index) == Rank, "a captured array wants an index per dimension");
    return at(std::make_integer_sequence<int, Rank>(), index...);
  }
  template <class Index>
  XF_INLINE auto operator[](Index index) const {
    return (*this)(index);
  }

 private:
  template <int... Dim, class... Index>
  XF_INLINE auto at(std::integer_sequence<int, Dim...>, Index... index) const {
    return value_at(static_cast<const T*>(array.data), (element(Dim, index) + ...));
  }
  XF_INLINE int element(int dim, int i) const {
    return (i < 0 ? 0 : at_most(i, array.size[dim] - 1)) * array.stride[dim];
  }
  XF_INLINE Ints element(int dim, Ints i) const {
    return max(at_most(i, array.size[dim] - 1), Ints(0)) * array.stride[dim];
  }
};

// What snippets may call besides operators, select, min, max, exp2, log2, sqrt and tanh.
XF_INLINE Floats exp(Floats x) { return exp2(Floats(x * kLog2e)); }
XF_INLINE Floats log(Floats x) { return log2(x) * kLn2; }
XF_INLINE Floats abs(Floats x) { return max(x, Floats(-x)); }
XF_INLINE Ints abs(Ints x) { return max(x, Ints(-x)); }
XF_INLINE int abs(int x) { return x < 0 ? -x : x; }
XF_INLINE Floats number(Ints x) { return to_floats<Floats>(x); }
XF_INLINE float number(int x) { return static_cast<float>(x); }
constexpr float inf = kInf;

// The hook that calls it. Rows and keys past the end are given the last one's position.
template <class Snippet>
struct ScoreMod {
  Snippet snippet;
  int batch, head, last_q, last_k;

  XF_INLINE ScoreMod(const FwdParams& p, const Sequence& seq, int h)
      : snippet(static_cast<const ScoreModParams&>(p).captures),
        batch(seq.batch),
        head(h),
        last_q(seq.sq - 1),
        last_k(seq.sk - 1) {}
  template <class S, class I, class J>
  XF_INLINE S score(S s, I q, J k) const {
    return snippet(s, batch, head, at_most(q, last_q), at_most(k, last_k));
  }
};

}  // namespace xeflash
