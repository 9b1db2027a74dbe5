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

// r = op(a, b, c) on every lane; c is 0 where there are two sources. `read` fetches the lanes of an
// operand.
template <int kSources, class T, class R, class Read, class Op>
void map_lanes(const Thread& t, const Inst& inst, Read read, Op op, Lanes<R>& r) {
  const int n = inst.exec_size;
  Lanes<T> a, b, c;
  read(t, inst.src[0], n, a);
  read(t, inst.src[1], n, b);
  if constexpr (kSources == 3) read(t, inst.src[2], n, c);
  for (int i = 0; i < n; ++i) {
    if constexpr (kSources == 3)
      r[i] = op(a[i], b[i], c[i]);
    else
      r[i] = op(a[i], b[i], T{0});
  }
}

constexpr auto kIntegers = [](const Thread& t, const Operand& o, int n, auto& out) {
  read_integers(t, o, n, out);
};

template <class F, int kSources, class T>
void integer_lanes(Thread& t, const Inst& inst) {
  Lanes<T> r;
  map_lanes<kSources, T>(t, inst, kIntegers, F::template apply<T>, r);
  finish_integers(t, inst, r, t.active_lanes(inst), sources_defined<kSources>(t, inst));
}

// Results of at most 32 bits that wrap: the low 32 bits of everything are enough.
template <class F, int kSources>
void wrapping_lanes(Thread& t, const Inst& inst) {
  Lanes<uint32_t> r;
  const auto low = [](int64_t a, int64_t b, int64_t c) {
    return F::template apply<uint32_t>(static_cast<uint32_t>(a), static_cast<uint32_t>(b),
                                       static_cast<uint32_t>(c));
  };
  map_lanes<kSources, int64_t>(t, inst, kIntegers, low, r);
  write_bits(t, inst, r, t.active_lanes(inst), sources_defined<kSources>(t, inst));
}

// A sum that cancels to zero is -0 when rounding down, unless both addends are +0.
inline double signed_zero(double sum, double x, double y) {
  const bool positive = x == 0 && y == 0 && !std::signbit(x) && !std::signbit(y);
  return sum == 0 && !positive ? -0.0 : sum;
}

template <class F, int kSources>
void double_lanes(Thread& t, const Inst& inst) {
  Lanes<double> r;
  if (!std::is_same_v<F, Mul> && rounding_of(t) == Rounding::kDown) {
    const auto down = [](double a, double b, double c) {
      return signed_zero(F::to_odd(a, b, c), a, kSources == 3 ? b * c : b);
    };
    map_lanes<kSources, double>(t, inst, read_doubles, down, r);
  } else {
    map_lanes<kSources, double>(t, inst, read_doubles, F::to_odd, r);
  }
  finish_doubles(t, inst, r, t.active_lanes(inst), sources_defined<kSources>(t, inst));
}

// df: the host's double in the rounding mode of the thread.
template <class F, int kSources>
void fp64_lanes(Thread& t, const Inst& inst) {
  constexpr int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  Lanes<double> r;
  const int mode = modes[static_cast<int>(rounding_of(t))];
  if (mode != FE_TONEAREST) std::fesetround(mode);
  map_lanes<kSources, double>(t, inst, read_doubles, F::template apply<double>, r);
  if (mode != FE_TONEAREST) std::fesetround(FE_TONEAREST);
  finish_doubles(t, inst, r, t.active_lanes(inst), sources_defined<kSources>(t, inst));
}

template <class F, int kSources>
void float_lanes(Thread& t, const Inst& inst) {
  if (!native_floats(t)) return double_lanes<F, kSources>(t, inst);
  Lanes<float> r;
  map_lanes<kSources, float>(t, inst, read_floats, F::template apply<float>, r);
  finish_floats(t, inst, r, t.active_lanes(inst), sources_defined<kSources>(t, inst));
}

inline bool any_fp64(const Inst& inst) {
  if (inst.dst.type == Type::kDF) return true;
  for (const Operand& o : inst.src) {
    if (o.file != File::kNone && o.type == Type::kDF) return true;
  }
  return false;
}

template <class F, int kSources>
Execute integer_function(const Inst& inst) {
  if (has_64bit(inst)) return integer_lanes<F, kSources, Int128>;
  if (!inst.saturate && inst.condition == Condition::kNone && !is_float(inst.dst.type)) {
    return wrapping_lanes<F, kSources>;
  }
  return integer_lanes<F, kSources, int64_t>;
}
template <class F, int kSources>
Execute arithmetic_function(const Inst& inst) {
  if (!has_float_source(inst)) return integer_function<F, kSources>(inst);
  if (any_fp64(inst)) return fp64_lanes<F, kSources>;
  // Single-precision results of operands that single precision holds exactly: one native operation.
  if (inst.dst.type == Type::kF) return float_lanes<F, kSources>;
  return double_lanes<F, kSources>;
}

}  // namespace xesim
