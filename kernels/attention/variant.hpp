// Changes to a score, in natural units, after scaling. A variant is a struct made from the launch's
// parameters with one hook, score(s, q, k); it hides a key by returning -inf. Row and key are a
// scalar and a vector, or a vector and a scalar, depending on how the device lays out S.
// Variant<A, B> applies A, then B. For the backward pass, change(s, slope, q, k) also multiplies
// slope by the derivative of the new score over the old one.
#pragma once

#include "attention/work.hpp"

namespace xeflash {

template <class... Hooks>
struct Variant;

template <>
struct Variant<> {
  static constexpr bool kIdentity = true, kOfUsers = false;
  XF_INLINE Variant(const FwdParams&, const Sequence&, int) {}
  template <class S, class I, class J>
  XF_INLINE S score(S s, I, J) const {
    return s;
  }
  template <class S, class I, class J>
  XF_INLINE void change(S&, S&, I, J) const {}
};

template <class Hook, class... Rest>
struct Variant<Hook, Rest...> {
  static constexpr bool kIdentity = false;
  // True if it runs a user's code, which is meant only for scores that a row sees.
  static constexpr bool kOfUsers = Variant<Rest...>::kOfUsers || requires { Hook::kOfUser; };
  Hook hook;
  Variant<Rest...> rest;

  XF_INLINE Variant(const FwdParams& p, const Sequence& seq, int head)
      : hook(p, seq, head), rest(p, seq, head) {}
  template <class S, class I, class J>
  XF_INLINE S score(S s, I q, J k) const {
    return rest.score(hook.score(s, q, k), q, k);
  }
  template <class S, class I, class J>
  XF_INLINE void change(S& s, S& slope, I q, J k) const {
    if constexpr (requires { hook.change(s, slope, q, k); }) {
      hook.change(s, slope, q, k);
    } else {  // it adds to the score or hides it: the slope stays
      s = hook.score(s, q, k);
    }
    rest.change(s, slope, q, k);
  }
};

// s = s: keeps the score scaled. A negative scale must be applied before the softmax finds the
// largest score; without a variant the softmax would scale differences to that.
struct Scaled {
  XF_INLINE Scaled(const FwdParams&, const Sequence&, int) {}
  template <class S, class I, class J>
  XF_INLINE S score(S s, I, J) const {
    return s;
  }
};

// s = cap tanh(s / cap)
struct SoftCap {
  float cap, inverse;
  XF_INLINE SoftCap(const FwdParams& p, const Sequence&, int)
      : cap(p.softcap), inverse(1.f / p.softcap) {}
  template <class S, class I, class J>
  XF_INLINE S score(S s, I, J) const {
    return tanh(s * inverse) * cap;
  }
  template <class S, class I, class J>
  XF_INLINE void change(S& s, S& slope, I, J) const {
    const S t = tanh(s * inverse);
    s = t * cap;
    slope = slope * (1.f - t * t);
  }
};

// s -= slope |q + shift - k|
struct Alibi {
  float slope;
  int shift;
  XF_INLINE Alibi(const FwdParams& p, const Sequence& seq, int head)
      : slope(p.alibi[seq.batch * p.alibi_batch + head]), shift(seq.shift(p)) {}
  template <class S, class I, class J>
  XF_INLINE S score(S s, I q, J k) const {
    return s - distance<S>(q, k) * slope;
  }
  template <class S, class I, class J>
  XF_INLINE S distance(I q, J k) const {
    const S ahead = to_floats(k - (q + shift));
    return max(ahead, -ahead);
  }
};

// s += bias[q, k], or s = bias[q, k] ? s : -inf for a boolean mask. Rows and keys past the end read
// the last one.
template <class T>
struct Bias {
  const T* data;
  int64_t row, col;
  int last_q, last_k;
  XF_INLINE Bias(const FwdParams& p, const Sequence& seq, int head)
      : data(static_cast<const T*>(p.bias.data) + seq.batch * p.bias.batch + head * p.bias.head),
        row(p.bias.row),
        col(p.bias.col),
        last_q(seq.sq - 1),
        last_k(seq.sk - 1) {}
  template <class S, class I, class J>
  XF_INLINE S score(S s, I q, J k) const {
    if constexpr (sizeof(T) == 1) {
      return select(value_at(data, row, at_most(q, last_q), col, at_most(k, last_k)) != S(0.f), s,
                    S(-kInf));
    } else {
      return s + value_at(data, row, at_most(q, last_q), col, at_most(k, last_k));
    }
  }
};

// Resets slopes to 1, for the gradient of the term that the hook before this one added: slopes are
// then those of the hooks that follow.
struct SlopesFromHere {
  XF_INLINE SlopesFromHere(const FwdParams&, const Sequence&, int) {}
  template <class S, class I, class J>
  XF_INLINE void change(S&, S& slope, I, J) const {
    slope = S(1.f);
  }
};

}  // namespace xeflash
