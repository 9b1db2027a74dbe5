// add, mul, mad, add3, avg, mac: the same text for integers and floats of every format.
#pragma once

#include <cfenv>

#include "insns/common.hpp"

namespace xesim {

// apply(): for integers at full precision, float and double to nearest. to_odd(): doubles that a
// rounding follows.
struct Add {
  template <class T>
  static T apply(T a, T b, T) {
    return a + b;
  }
  static double to_odd(double a, double b, double) { return add_to_odd(a, b); }
};
struct Mul {
  template <class T>
  static T apply(T a, T b, T) {
    return a * b;
  }
  static double to_odd(double a, double b, double) { return a * b; }  // exact: at most 24 bits each
};
struct Mad {  // src0 + src1 * src2, fused
  template <class T>
  static T apply(T a, T b, T c) {
    if constexpr (std::is_floating_point_v<T>)
      return std::fma(b, c, a);
    else
      return a + b * c;
  }
  static double to_odd(double a, double b, double c) { return add_to_odd(a, b * c); }
};
struct Add3 {
  template <class T>
  static T apply(T a, T b, T c) {
    return a + b + c;
  }
};
struct Avg {  // rounds up
  template <class T>
  static T apply(T a, T b, T) {
    return (a + b + 1) >> 1;
  }
};

template <class F, int kSources, class T>
void integer_lanes(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  Lanes<T> a, b, c, r;
  read_integers(t, inst.src[0], n, a);
  read_integers(t, inst.src[1], n, b);
  if constexpr (kSources == 3) read_integers(t, inst.src[2], n, c);
  for (int i = 0; i < n; ++i) {
    if constexpr (kSources == 3)
      r[i] = F::template apply<T>(a[i], b[i], c[i]);
    else
      r[i] = F::template apply<T>(a[i], b[i], T{0});
  }
  finish_integers(t, inst, r, t.active_lanes(inst), sources_defined<kSources>(t, inst));
}

// Results of at most 32 bits that wrap: the low 32 bits of everything are enough.
template <class F, int kSources>
void wrapping_lanes(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  Lanes<int64_t> a, b, c;
  Lanes<uint32_t> r;
  read_integers(t, inst.src[0], n, a);
  read_integers(t, inst.src[1], n, b);
  if constexpr (kSources == 3) read_integers(t, inst.src[2], n, c);
  for (int i = 0; i < n; ++i) {
    const uint32_t x = static_cast<uint32_t>(a[i]), y = static_cast<uint32_t>(b[i]);
    if constexpr (kSources == 3)
      r[i] = F::template apply<uint32_t>(x, y, static_cast<uint32_t>(c[i]));
    else
      r[i] = F::template apply<uint32_t>(x, y, 0u);
  }
  write_bits(t, inst, r, t.active_lanes(inst), sources_defined<kSources>(t, inst));
}

// A sum that cancels to zero is -0 when rounding down, unless both addends are +0.
inline double signed_zero(double sum, double x, double y) {
  const bool positive = x == 0 && y == 0 && !std::signbit(x) && !std::signbit(y);
  return sum == 0 && !positive ? -0.0 : sum;
}

template <class F, int kSources>
void double_lanes(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  Lanes<double> a, b, c, r;
  read_doubles(t, inst.src[0], n, a);
  read_doubles(t, inst.src[1], n, b);
  if constexpr (kSources == 3) read_doubles(t, inst.src[2], n, c);
  for (int i = 0; i < n; ++i) {
    if constexpr (kSources == 3)
      r[i] = F::to_odd(a[i], b[i], c[i]);
    else
      r[i] = F::to_odd(a[i], b[i], 0.0);
  }
  if (!std::is_same_v<F, Mul> && rounding_of(t) == Rounding::kDown) {
    for (int i = 0; i < n; ++i) r[i] = signed_zero(r[i], a[i], kSources == 3 ? b[i] * c[i] : b[i]);
  }
  finish_doubles(t, inst, r, t.active_lanes(inst), sources_defined<kSources>(t, inst));
}

// df: the host's double in the rounding mode of the thread.
template <class F, int kSources>
void fp64_lanes(Thread& t, const Inst& inst) {
  constexpr int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  const int n = inst.exec_size;
  Lanes<double> a, b, c, r;
  read_doubles(t, inst.src[0], n, a);
  read_doubles(t, inst.src[1], n, b);
  if constexpr (kSources == 3) read_doubles(t, inst.src[2], n, c);
  const int mode = modes[static_cast<int>(rounding_of(t))];
  if (mode != FE_TONEAREST) std::fesetround(mode);
  for (int i = 0; i < n; ++i) {
    if constexpr (kSources == 3)
      r[i] = F::template apply<double>(a[i], b[i], c[i]);
    else
      r[i] = F::template apply<double>(a[i], b[i], 0.0);
  }
  if (mode != FE_TONEAREST) std::fesetround(FE_TONEAREST);
  finish_doubles(t, inst, r, t.active_lanes(inst), sources_defined<kSources>(t, inst));
}

template <class F, int kSources>
void float_lanes(Thread& t, const Inst& inst) {
  if (!native_floats(t)) return double_lanes<F, kSources>(t, inst);
  const int n = inst.exec_size;
  Lanes<float> a, b, c, r;
  read_floats(t, inst.src[0], n, a);
  read_floats(t, inst.src[1], n, b);
  if constexpr (kSources == 3) read_floats(t, inst.src[2], n, c);
  for (int i = 0; i < n; ++i) {
    if constexpr (kSources == 3)
      r[i] = F::template apply<float>(a[i], b[i], c[i]);
    else
      r[i] = F::template apply<float>(a[i], b[i], 0.0f);
  }
  finish_floats(t, inst, r, t.active_lanes(inst), sources_defined<kSources>(t, inst));
}

inline bool any_fp64(const Inst& inst) {
  if (inst.dst.type == Type::kDF) return true;
  for (const Operand& o : inst.src) {
    if (o.file != File::kNone && o.type == Type::kDF) return true;
  }
  return false;
}

using LaneFunction = void (*)(Thread&, const Inst&);

template <class F, int kSources>
LaneFunction integer_function(const Inst& inst) {
  if (has_64bit(inst)) return integer_lanes<F, kSources, Int128>;
  if (!inst.saturate && inst.condition == Condition::kNone && !is_float(inst.dst.type)) {
    return wrapping_lanes<F, kSources>;
  }
  return integer_lanes<F, kSources, int64_t>;
}
template <class F, int kSources>
LaneFunction arithmetic_function(const Inst& inst) {
  if (!has_float_source(inst)) return integer_function<F, kSources>(inst);
  if (any_fp64(inst)) return fp64_lanes<F, kSources>;
  // Single-precision results of operands that single precision holds exactly: one native operation.
  if (inst.dst.type == Type::kF) return float_lanes<F, kSources>;
  return double_lanes<F, kSources>;
}

}  // namespace xesim
