// Dual numbers: a value with its slope (derivative). Snippets (score_mod.hpp) compute with them in
// the backward pass. Each operation applies the rule of its derivative to the slopes; comparisons
// compare the values alone.
#pragma once

#include <type_traits>

#include "attention/work.hpp"

namespace xeflash::snippet {

struct Dual {  // the type of a Lane that holds DualFloats, where float is that of Floats
  Dual operator+(Dual) const;
  Dual operator+(float) const;
  friend Dual operator+(float, Dual);
};

// Applies the chain rule: slope times derivative. A slope of 0 stays 0 even where the derivative is
// infinite.
XF_INLINE Floats carried(Floats slope, Floats derivative) {
  return xeflash::select(slope == Floats(0.f), Floats(0.f), Floats(slope * derivative));
}

struct DualFloats {
  Floats value, slope;

  XF_INLINE DualFloats() = default;
  XF_INLINE DualFloats(Floats value, Floats slope) : value(value), slope(slope) {}
  XF_INLINE explicit DualFloats(Floats constant) : value(constant), slope(0.f) {}
  XF_INLINE explicit DualFloats(float constant) : value(constant), slope(0.f) {}

  XF_INLINE DualFloats operator-() const { return {-value, -slope}; }
  XF_INLINE friend DualFloats operator+(const DualFloats& a, const DualFloats& b) {
    return {a.value + b.value, a.slope + b.slope};
  }
  XF_INLINE friend DualFloats operator-(const DualFloats& a, const DualFloats& b) {
    return {a.value - b.value, a.slope - b.slope};
  }
  XF_INLINE friend DualFloats operator*(const DualFloats& a, const DualFloats& b) {
    return {a.value * b.value, a.slope * b.value + a.value * b.slope};
  }
  XF_INLINE friend DualFloats operator/(const DualFloats& a, const DualFloats& b) {
    const Floats quotient = a.value / b.value;
    const Floats slope = a.slope - carried(b.slope, quotient);
    return {quotient, xeflash::select(slope == Floats(0.f), Floats(0.f), Floats(slope / b.value))};
  }
  XF_INLINE friend DualFloats select(const Bools& c, const DualFloats& a, const DualFloats& b) {
    return {xeflash::select(c, a.value, b.value), xeflash::select(c, a.slope, b.slope)};
  }
  XF_INLINE friend DualFloats select(bool c, const DualFloats& a, const DualFloats& b) {
    return select(to_bools(c), a, b);
  }
#define XF_COMPARISON(op)                                                        \
  XF_INLINE friend Bools operator op(const DualFloats& a, const DualFloats& b) { \
    return a.value op b.value;                                                   \
  }
  XF_COMPARISON(==)
  XF_COMPARISON(!=)
  XF_COMPARISON(<)
  XF_COMPARISON(<=)
  XF_COMPARISON(>)
  XF_COMPARISON(>=)
#undef XF_COMPARISON
};

}  // namespace xeflash::snippet

template <class T>
  requires std::is_arithmetic_v<T>
struct std::common_type<xeflash::snippet::Dual, T> {
  using type = xeflash::snippet::Dual;
};
template <class T>
  requires std::is_arithmetic_v<T>
struct std::common_type<T, xeflash::snippet::Dual> {
  using type = xeflash::snippet::Dual;
};
