// The values that snippets (score_mod.hpp) compute with: one per score, one per row (the same for
// all keys) or one per key. A device keeps some of them in vectors; a snippet cannot tell which.
// Operators convert as C++ does, bool to int to float, and in no other way: code that needs a Lane
// as a bool, an int or a C++ type of 64 bits does not compile, unless the Lane depends on neither
// query nor key (see operator N).
// Word: sqrt   returns the square root of each lane of a vector
// Word: floor  rounds each lane of a vector down to a whole number
#pragma once

#include <concepts>

#include "attention/circle.hpp"
#include "attention/dual.hpp"

namespace xeflash::snippet {

// The positions on which a value depends.
enum class Of { neither = 0, query = 1, key = 2, both = 3 };
constexpr Of operator|(Of a, Of b) {
  return static_cast<Of>(static_cast<int>(a) | static_cast<int>(b));
}

template <class T, Of kOf, bool kVector>
struct Lane;

// The traits of a Lane or a C++ number: Type (bool, int, float or Dual), of, is_vector, is_lane.
template <class X>
struct Traits;
template <class T, Of kOf, bool kVector>
struct Traits<Lane<T, kOf, kVector>> {
  using Type = T;
  static constexpr Of of = kOf;
  static constexpr bool is_vector = kVector, is_lane = true;
};
template <class X>
  requires(std::same_as<X, float> || (std::integral<X> && sizeof(X) < 4) || std::same_as<X, int>)
struct Traits<X> {
  using Type = std::conditional_t<std::integral<X> && !std::same_as<X, bool>, int, X>;
  static constexpr Of of = Of::neither;
  static constexpr bool is_vector = false, is_lane = false;
};
template <class X>
using TypeOf = typename Traits<X>::Type;

template <class... X>
concept Values = requires { typename std::common_type_t<TypeOf<X>...>; };
template <class... X>
concept Integers = Values<X...> && (std::integral<TypeOf<X>> && ...);
template <class A, class B>
concept Operands = Values<A, B> && (Traits<A>::is_lane || Traits<B>::is_lane);
template <class... X>
constexpr bool kAnyVector = (Traits<X>::is_vector || ...);
template <class A, class B>
using Arithmetic = decltype(TypeOf<A>{} + TypeOf<B>{});  // int or float
// The type of a bitwise result. C++ promotes two bools to int; here they stay bool, as the values
// stay 0 and 1.
template <class A, class B>
using Bits = std::common_type_t<TypeOf<A>, TypeOf<B>>;
template <class, class>
using Bool = bool;
template <class, class>
using Int = int;
template <class From, class To>
constexpr bool kWidens = std::is_same_v<std::common_type_t<From, To>, To>;

template <class T>
struct InVector;
template <>
struct InVector<float> : std::type_identity<Floats> {};
template <>
struct InVector<int> : std::type_identity<Ints> {};
template <>
struct InVector<bool> : std::type_identity<Bools> {};
template <>
struct InVector<Dual> : std::type_identity<DualFloats> {};
template <class T>
using VectorOf = typename InVector<T>::type;

template <class To, bool kVector, class X>
XF_INLINE auto as(const X& x);

template <class T, Of kOf, bool kVector>
struct Lane {
  using Native = std::conditional_t<kVector, VectorOf<T>, T>;
  Native native;

  XF_INLINE explicit Lane(Native x) : native(x) {}
  template <class X>
    requires(kWidens<TypeOf<X>, T> && (Traits<X>::of | kOf) == kOf)
  XF_INLINE Lane(const X& x) : native(as<T, kVector>(x)) {}

  // A value that depends on neither query nor key is the same in all lanes, so it can become a C++
  // int or bool. It does not become a float, which would lose the slope of a Dual.
  template <class N>
    requires(kOf == Of::neither && kVector && (std::same_as<N, int> || std::same_as<N, bool>))
  XF_INLINE operator N() const {
    if constexpr (std::is_same_v<T, Dual>) {
      return static_cast<N>(static_cast<float>(native.value[0]));
    } else {
      return static_cast<N>(native[0] != 0 ? (std::is_same_v<T, bool> ? 1 : native[0]) : 0);
    }
  }

  template <class X>
  XF_INLINE Lane& operator+=(const X& x) {
    return *this = *this + x;
  }
  template <class X>
  XF_INLINE Lane& operator-=(const X& x) {
    return *this = *this - x;
  }
  template <class X>
  XF_INLINE Lane& operator*=(const X& x) {
    return *this = *this * x;
  }
  template <class X>
  XF_INLINE Lane& operator/=(const X& x) {
    return *this = *this / x;
  }
};

// ---- conversions --------------------------------------------------------------------------------

template <class To, class From, class V>
XF_INLINE auto converted(V x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_same_v<To, Dual>) {
    return DualFloats(converted<float, From>(x));
  } else if constexpr (std::is_same_v<From, Dual>) {
    return converted<To, float>(x.value);
  } else if constexpr (std::is_same_v<From, int> && std::is_same_v<To, float>) {
    return to_floats(x);
  } else if constexpr (std::is_same_v<V, From>) {
    return static_cast<To>(x);
  } else if constexpr (std::is_same_v<To, bool>) {
    return Bools(x != V(0));
  } else {
    return converted<To, int>(to_ints(x));
  }
}
// Returns the native value of x, converted to type To, in a vector or not.
template <class To, bool kVector, class X>
XF_INLINE auto as(const X& x) {
  if constexpr (!Traits<X>::is_lane) {
    return as<To, kVector>(Lane<TypeOf<X>, Of::neither, false>(static_cast<TypeOf<X>>(x)));
  } else {
    const auto value = converted<To, TypeOf<X>>(x.native);
    if constexpr (kVector == Traits<X>::is_vector || std::is_same_v<To, Dual>) {
      return value;
    } else if constexpr (std::is_same_v<To, bool>) {
      return to_bools(value);
    } else {
      return VectorOf<To>(value);
    }
  }
}
// Wraps the result of an operation on X...: in a Lane if one of them is a Lane, else as a number.
template <class T, class... X, class V>
XF_INLINE auto made(V x) {
  if constexpr ((Traits<X>::is_lane || ...)) {
    return Lane<T, (Traits<X>::of | ...), kAnyVector<X...>>(x);
  } else {
    return static_cast<T>(x);
  }
}

// ---- operators ----------------------------------------------------------------------------------

#define XF_OPERATOR(op, native_op, Operand, Result, Allowed) \
  template <class A, class B>                                \
    requires(Operands<A, B> && Allowed<A, B>)                \
  XF_INLINE auto operator op(const A& a, const B& b) {       \
    constexpr bool kVector = kAnyVector<A, B>;               \
    using T = Operand<A, B>;                                 \
    const auto x = as<T, kVector>(a), y = as<T, kVector>(b); \
    return made<Result<A, B>, A, B>(x native_op y);          \
  }
XF_OPERATOR(+, +, Arithmetic, Arithmetic, Values)
XF_OPERATOR(-, -, Arithmetic, Arithmetic, Values)
XF_OPERATOR(*, *, Arithmetic, Arithmetic, Values)
XF_OPERATOR(==, ==, Arithmetic, Bool, Values)
XF_OPERATOR(!=, !=, Arithmetic, Bool, Values)
XF_OPERATOR(<, <, Arithmetic, Bool, Values)
XF_OPERATOR(<=, <=, Arithmetic, Bool, Values)
XF_OPERATOR(>, >, Arithmetic, Bool, Values)
XF_OPERATOR(>=, >=, Arithmetic, Bool, Values)
XF_OPERATOR(&, &, Bits, Bits, Integers)
XF_OPERATOR(|, |, Bits, Bits, Integers)
XF_OPERATOR(^, ^, Bits, Bits, Integers)
XF_OPERATOR(<<, <<, Int, Int, Integers)
XF_OPERATOR(>>, >>, Int, Int, Integers)
XF_OPERATOR(&&, &, Bool, Bool, Values)
XF_OPERATOR(||, |, Bool, Bool, Values)
#undef XF_OPERATOR

template <class C, class V>
XF_INLINE V choose(C c, V a, V b) {
  if constexpr (std::is_arithmetic_v<V>) {
    return c ? a : b;
  } else {
    using xeflash::select;
    return select(c, a, b);
  }
}
// Returns b, or 1 where a / b is undefined in C++ and a CPU would trap.
template <class V>
XF_INLINE V divisor(V a, V b) {
  constexpr int kLeast = -0x7fffffff - 1;
  return choose((b == V(0)) | ((b == V(-1)) & (a == V(kLeast))), V(1), b);
}
template <class A, class B>
  requires(Operands<A, B> && Values<A, B>)
XF_INLINE auto operator/(const A& a, const B& b) {
  using T = Arithmetic<A, B>;
  const auto x = as<T, kAnyVector<A, B>>(a), y = as<T, kAnyVector<A, B>>(b);
  if constexpr (std::is_same_v<T, int>) {
    return made<T, A, B>(x / divisor(x, y));
  } else {
    return made<T, A, B>(x / y);
  }
}
template <class A, class B>
  requires(Operands<A, B> && Integers<A, B>)
XF_INLINE auto operator%(const A& a, const B& b) {
  const auto x = as<int, kAnyVector<A, B>>(a), y = as<int, kAnyVector<A, B>>(b);
  return made<int, A, B>(x % divisor(x, y));
}

template <class T, Of kOf, bool kVector>
XF_INLINE auto operator-(const Lane<T, kOf, kVector>& x) {
  using X = Lane<T, kOf, kVector>;
  return made<Arithmetic<X, X>, X>(-as<Arithmetic<X, X>, kVector>(x));
}
template <class T, Of kOf, bool kVector>
XF_INLINE auto operator+(const Lane<T, kOf, kVector>& x) {
  using X = Lane<T, kOf, kVector>;
  return made<Arithmetic<X, X>, X>(as<Arithmetic<X, X>, kVector>(x));
}
template <Integers T, Of kOf, bool kVector>
XF_INLINE auto operator~(const Lane<T, kOf, kVector>& x) {
  return made<int, Lane<T, kOf, kVector>>(~as<int, kVector>(x));
}
template <class T, Of kOf, bool kVector>
XF_INLINE auto operator!(const Lane<T, kOf, kVector>& x) {
  return made<bool, Lane<T, kOf, kVector>>(!as<bool, kVector>(x));
}

// ---- functions, which take C++ numbers too ------------------------------------------------------

// Returns c ? a : b, with a and b converted to one type as in C++. All three are evaluated, as by
// any function.
template <class C, class A, class B>
  requires(Values<C, A, B>)
XF_INLINE auto select(const C& c, const A& a, const B& b) {
  using T = Bits<A, B>;
  constexpr bool kVector = kAnyVector<C, A, B>;
  const auto x = as<T, kVector>(a), y = as<T, kVector>(b);
  const auto condition = as<bool, Traits<C>::is_vector>(c);
  if constexpr (kVector && std::is_same_v<T, bool>) {
    const Bools in_lanes = as<bool, true>(c);
    return made<T, C, A, B>(Bools((in_lanes & x) | (!in_lanes & y)));
  } else {
    return made<T, C, A, B>(choose(condition, x, y));
  }
}

// These return the smaller and the larger of two values; if one is NaN, they return the other one.
template <class A, class B>
  requires(Values<A, B>)
XF_INLINE auto min(const A& a, const B& b) {
  using T = Arithmetic<A, B>;
  const auto x = as<T, kAnyVector<A, B>>(a), y = as<T, kAnyVector<A, B>>(b);
  return made<T, A, B>(choose((x < y) | (y != y), x, y));
}
template <class A, class B>
  requires(Values<A, B>)
XF_INLINE auto max(const A& a, const B& b) {
  using T = Arithmetic<A, B>;
  const auto x = as<T, kAnyVector<A, B>>(a), y = as<T, kAnyVector<A, B>>(b);
  return made<T, A, B>(choose((x > y) | (y != y), x, y));
}
template <class X>
  requires(Values<X>)
XF_INLINE auto abs(const X& x) {
  using T = Arithmetic<X, X>;
  const auto value = as<T, Traits<X>::is_vector>(x);
  return made<T, X>(choose(value < decltype(value)(0), -value, value));
}

template <class X>
constexpr bool kIsDual = std::is_same_v<TypeOf<X>, Dual>;

// Converts x to float; a Dual keeps its slope.
template <class X>
  requires(Values<X>)
XF_INLINE auto number(const X& x) {
  using T = std::conditional_t<kIsDual<X>, Dual, float>;
  return made<T, X>(as<T, Traits<X>::is_vector>(x));
}

// Rounds x down to a whole number, which is a float. It has no slope.
template <class X>
  requires(Values<X>)
XF_INLINE auto floor(const X& x) {
  const Floats y = xeflash::floor(as<float, true>(x));
  if constexpr (Traits<X>::is_vector) {
    return made<float, X>(y);
  } else {
    return made<float, X>(static_cast<float>(y[0]));
  }
}

// Makes an int of x, which is rounded towards 0. Floats beyond all ints become the nearest one, and
// NaN becomes 0.
template <class X>
  requires(Values<X>)
XF_INLINE auto whole(const X& x) {
  if constexpr (Integers<X>) {
    return made<int, X>(as<int, Traits<X>::is_vector>(x));
  } else {
    const Ints y = to_ints(as<float, true>(x));
    if constexpr (Traits<X>::is_vector) {
      return made<int, X>(y);
    } else {
      return made<int, X>(static_cast<int>(y[0]));
    }
  }
}

// Defines y = name(x) with its derivative.
#define XF_FUNCTION(name, expression, derivative)                              \
  template <class X>                                                           \
    requires(Values<X>)                                                        \
  XF_INLINE auto name(const X& argument) {                                     \
    const Floats x = as<float, true>(argument);                                \
    const Floats y = expression;                                               \
    if constexpr (kIsDual<X>) {                                                \
      const Floats slope = argument.native.slope;                              \
      return made<Dual, X>(DualFloats(y, carried(slope, Floats(derivative)))); \
    } else if constexpr (Traits<X>::is_vector) {                               \
      return made<float, X>(y);                                                \
    } else {                                                                   \
      return made<float, X>(static_cast<float>(y[0]));                         \
    }                                                                          \
  }
XF_FUNCTION(exp2, xeflash::exp2(x), y* kLn2)
XF_FUNCTION(exp, xeflash::exp2(Floats(x* kLog2e)), y)
XF_FUNCTION(log2, log2_of_any(x), kLog2e / x)
XF_FUNCTION(log, log2_of_any(x) * kLn2, 1.f / x)
XF_FUNCTION(sqrt, xeflash::sqrt(x), 0.5f / y)
XF_FUNCTION(tanh, xeflash::tanh(x), 1.f - y * y)
XF_FUNCTION(sin, circle(x).sine, circle(x).cosine)
XF_FUNCTION(cos, circle(x).cosine, -circle(x).sine)
#undef XF_FUNCTION

constexpr float inf = kInf;

}  // namespace xeflash::snippet
