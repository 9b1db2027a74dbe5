// math: the extended functions. The host's libm in double, rounded once; the hardware's exact bits
// are not documented, only bounds on its error. With checks.math each result moves by a seeded
// amount within that bound, so that a kernel that depends on more than the bound shows.
#pragma once

#include "insns/common.hpp"

namespace xesim {

// Largest error in units of the last place of f (ESIMD's math.hpp states them); exact for double
// macros.
inline double math_error_ulps(MathFn fn) {
  switch (fn) {
    case MathFn::kInv:
      return 1;
    case MathFn::kExp:
    case MathFn::kSqt:
    case MathFn::kRsqt:
      return 4;
    default:
      return 0;
  }
}
// Largest absolute error: of log2 near 1, of sin and cos everywhere.
inline double math_error_absolute(MathFn fn, double x, double result) {
  if (fn == MathFn::kLog) return x >= 0.5 && x <= 2 ? 0x1p-21 : std::fabs(result) * 0x1p-21;
  if (fn == MathFn::kSin || fn == MathFn::kCos) return 0.0008;
  return 0;
}

inline uint64_t mix(uint64_t x) {  // splitmix64 (Steele et al., 2014)
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

inline double evaluate(MathFn fn, double a, double b) {
  switch (fn) {
    case MathFn::kInv:
      return 1.0 / a;
    case MathFn::kLog:
      return std::log2(a);
    case MathFn::kExp:
      return std::exp2(a);
    case MathFn::kSqt:
      return std::sqrt(a);
    case MathFn::kRsqt:
      return 1.0 / std::sqrt(a);
    case MathFn::kSin:
      return std::sin(a);
    case MathFn::kCos:
      return std::cos(a);
    case MathFn::kFdiv:
      return a / b;
    case MathFn::kPow:
      return std::pow(std::fabs(a), b);
    default:
      fail("math function %d is not implemented", static_cast<int>(fn));
  }
}

// A function of the argument too, so equal arguments give equal results, as on hardware.
inline double perturbed(const Thread& t, MathFn fn, double argument, double result) {
  if (!std::isfinite(result) || result == 0) return result;
  const float single = static_cast<float>(result);
  const double ulp = std::fabs(static_cast<double>(std::nextafterf(single, INFINITY)) - single);
  const double bound =
      std::max(math_error_ulps(fn) * ulp, math_error_absolute(fn, argument, result));
  const uint64_t hash = mix(std::bit_cast<uint64_t>(argument) ^
                            mix(t.launch->checks.seed + static_cast<uint64_t>(fn)));
  const double share =
      static_cast<double>(static_cast<int64_t>(hash >> 11)) * 0x1p-52 - 1.0;  // [-1, 1)
  // Exact results that softmax relies on stay exact: exp2(0) = 1, inv(1) = 1, sqrt of squares are
  // in every table.
  if (result == 1.0) return result;
  return result + share * std::max(0.0, bound - 0.5 * ulp);
}

template <bool two_sources>
void math(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  const MathFn fn = static_cast<MathFn>(inst.function);
  Lanes<double> a, b{};
  read_doubles(t, inst.src[0], n, a);
  if constexpr (two_sources) read_doubles(t, inst.src[1], n, b);
  const bool perturb = t.launch->checks.math && inst.dst.type != Type::kDF;
  for (int i = 0; i < n; ++i) {
    const double x = a[i];
    a[i] = evaluate(fn, x, b[i]);
    if (perturb) a[i] = perturbed(t, fn, x, a[i]);
  }
  Inst result = inst;
  result.condition = Condition::kNone;  // the field holds the function
  finish_doubles(t, result, a, t.active_lanes(inst), sources_defined<two_sources ? 2 : 1>(t, inst));
}

// exp2 of floats: the most frequent one.
inline void math_exp2(Thread& t, const Inst& inst) {
  if (!native_floats(t) || t.launch->checks.math) return math<false>(t, inst);
  const int n = inst.exec_size;
  Lanes<float> x;
  read_floats(t, inst.src[0], n, x);
  for (int i = 0; i < n; ++i) x[i] = exp2f(x[i]);
  Inst result = inst;
  result.condition = Condition::kNone;
  finish_floats(t, result, x, t.active_lanes(inst), sources_defined<1>(t, inst));
}

// Integer division and remainder: quotient truncated towards zero.
template <bool remainder>
void integer_division(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  Lanes<int64_t> a, b;
  read_integers(t, inst.src[0], n, a);
  read_integers(t, inst.src[1], n, b);
  for (int i = 0; i < n; ++i) {
    if (b[i] == 0)
      a[i] = remainder ? a[i] : -1;  // all ones, as in the other ISAs of this family
    else
      a[i] = remainder ? a[i] % b[i] : a[i] / b[i];
  }
  Inst result = inst;
  result.condition = Condition::kNone;
  finish_integers(t, result, a, t.active_lanes(inst), sources_defined<2>(t, inst));
}

// First steps of the IEEE division and square root macros: for operands that the madm chain cannot
// handle the final result, with the early-out flag set; else an approximation, which here is the
// rounded reciprocal. The chain of fused multiply-adds then gives the correctly rounded result.
template <bool root>
void early_out(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  Lanes<double> a, b, r;
  read_doubles(t, inst.src[0], n, a);
  if constexpr (!root) read_doubles(t, inst.src[1], n, b);
  uint32_t done = 0;
  for (int i = 0; i < n; ++i) {
    if constexpr (root) {
      const bool special = !(a[i] > 0) || std::isinf(a[i]);
      r[i] = special ? std::sqrt(a[i]) : 1.0 / std::sqrt(a[i]);
      done |= static_cast<uint32_t>(special) << i;
    } else {
      const bool special = a[i] == 0 || b[i] == 0 || !std::isfinite(a[i]) || !std::isfinite(b[i]);
      r[i] = special ? a[i] / b[i] : 1.0 / b[i];
      done |= static_cast<uint32_t>(special) << i;
    }
  }
  const uint32_t active = t.active_lanes(inst), defined = sources_defined<root ? 1 : 2>(t, inst);
  write_doubles(t, inst, r, active, defined);
  write_flag(t, inst, done, active, defined);
}

inline Execute math_function(const Inst& inst) {
  switch (static_cast<MathFn>(inst.function)) {
    case MathFn::kInvm:
      return early_out<false>;
    case MathFn::kRsqtm:
      return early_out<true>;
    case MathFn::kFdiv:
    case MathFn::kPow:
      return math<true>;
    case MathFn::kIdiv:
    case MathFn::kIqot:
      return integer_division<false>;
    case MathFn::kIrem:
      return integer_division<true>;
    case MathFn::kExp:
      return inst.dst.type == Type::kF && inst.src[0].type == Type::kF ? math_exp2 : math<false>;
    default:
      return math<false>;
  }
}

}  // namespace xesim
