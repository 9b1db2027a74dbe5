// cmp, sel, csel.
#pragma once

#include "insns/common.hpp"

namespace xesim {

// Both operands in the type that compares them: T is int64_t, Int128, float or double.
template <class T>
void read_comparable(const Thread& t, const Operand& o, int n, Lanes<T>& out) {
  if constexpr (std::is_same_v<T, double>)
    read_doubles(t, o, n, out);
  else if constexpr (std::is_same_v<T, float>)
    read_floats(t, o, n, out);
  else
    read_integers(t, o, n, out);
}

// flag <- src0 cond src1; the destination, if there is one, all ones or zero.
template <class T>
void compare(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  Lanes<T> a, b;
  read_comparable(t, inst.src[0], n, a);
  read_comparable(t, inst.src[1], n, b);
  const uint32_t result = compare_lanes(inst.condition, a, b, n);
  const uint32_t active = t.active_lanes(inst);
  const uint32_t defined =
      same_integers(inst) ? t.defined_predicate(inst) : sources_defined<2>(t, inst);
  if (inst.dst.exists()) {
    Lanes<uint64_t> bits;
    for (int i = 0; i < n; ++i) bits[i] = result >> i & 1 ? ~uint64_t{0} : 0;
    write_bits(t, inst, bits, active, defined);
  }
  write_flag(t, inst, result, active, defined);
}

// The chosen source, copied raw where its type is the destination's, else converted.
template <class T>
void write_chosen(Thread& t, const Inst& inst, uint32_t first, uint32_t active, uint32_t defined) {
  const int n = inst.exec_size;
  const Operand &s0 = inst.src[0], &s1 = inst.src[1];
  const auto plain = [&](const Operand& o) {
    const Type type = o.file == File::kImmediate ? immediate_type(o) : o.type;
    return type == inst.dst.type && !o.negate && !o.absolute && !inst.saturate;
  };
  if (plain(s0) && plain(s1)) {
    Lanes<uint64_t> a, b;
    read_bits(t, s0, n, a);
    read_bits(t, s1, n, b);
    for (int i = 0; i < n; ++i) a[i] = first >> i & 1 ? a[i] : b[i];
    return write_bits(t, inst, a, active, defined);
  }
  Lanes<T> a, b;
  read_comparable(t, s0, n, a);
  read_comparable(t, s1, n, b);
  for (int i = 0; i < n; ++i) a[i] = first >> i & 1 ? a[i] : b[i];
  if constexpr (std::is_floating_point_v<T>) {
    Lanes<double> wide;
    for (int i = 0; i < n; ++i) wide[i] = static_cast<double>(a[i]);
    write_doubles(t, inst, wide, active, defined);
  } else {
    write_integers(t, inst, a, active, defined);
  }
}

// sel without a condition: the predicate chooses for every enabled lane. With one: minimum (lt, le)
// or maximum (gt, ge); of a NaN and a number the number, of two NaNs src1.
template <class T>
void select(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  if (inst.condition == Condition::kNone) {
    const uint32_t chosen = t.active_lanes(inst);
    Inst enabled = inst;
    enabled.predicate = Predicate::kNone;
    uint32_t defined = ~0u;
    if (t.track) {
      const uint32_t known = t.defined_predicate(inst);
      const uint32_t first = defined_lanes(t, inst.src[0], n),
                     second = defined_lanes(t, inst.src[1], n);
      defined = known & ((first & chosen) | (second & ~chosen));
      // A choice between equal values depends on nothing: loops that end lane by lane choose 0 or 0
      // in finished lanes.
      if ((first & second & ~known & t.active_lanes(enabled)) != 0) {
        Lanes<T> a, b;
        read_comparable(t, inst.src[0], n, a);
        read_comparable(t, inst.src[1], n, b);
        defined |= first & second & compare_lanes(Condition::kEq, a, b, n);
      }
    }
    return write_chosen<T>(t, enabled, chosen, t.active_lanes(enabled), defined);
  }
  Lanes<T> a, b;
  read_comparable(t, inst.src[0], n, a);
  read_comparable(t, inst.src[1], n, b);
  uint32_t first = compare_lanes(inst.condition, a, b, n);
  if constexpr (std::is_floating_point_v<T>) {
    for (int i = 0; i < n; ++i) {
      if (b[i] != b[i] && a[i] == a[i]) first |= 1u << i;
    }
  }
  write_chosen<T>(t, inst, first, t.active_lanes(inst), sources_defined<2>(t, inst));
}

// src2 cond 0 ? src0 : src1.
template <class T>
void conditional_select(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  Lanes<T> c;
  const Lanes<T> zero{};
  read_comparable(t, inst.src[2], n, c);
  const uint32_t first = compare_lanes(inst.condition, c, zero, n);
  write_chosen<T>(t, inst, first, t.active_lanes(inst), sources_defined<3>(t, inst));
}

// Fast form of sel.ge / sel.lt on floats: the running maximum of a softmax.
template <bool maximum>
void float_minmax(Thread& t, const Inst& inst) {
  if (!native_floats(t)) return select<double>(t, inst);
  const int n = inst.exec_size;
  Lanes<float> a, b, r;
  read_floats(t, inst.src[0], n, a);
  read_floats(t, inst.src[1], n, b);
  for (int i = 0; i < n; ++i) {
    const bool first = (maximum ? a[i] >= b[i] : a[i] < b[i]) || b[i] != b[i];
    r[i] = first && a[i] == a[i] ? a[i] : b[i];
  }
  Inst result = inst;
  result.condition = Condition::kNone;
  finish_floats(t, result, r, t.active_lanes(inst), sources_defined<2>(t, inst));
}

inline bool compares_single(const Inst& inst) {
  for (const Operand& o : inst.src) {
    if (o.file != File::kNone && (!is_float(o.type) || o.type == Type::kDF)) return false;
  }
  return true;
}

inline Execute compare_function(const Inst& inst) {
  if (compares_single(inst)) return compare<float>;
  if (has_float_source(inst)) return compare<double>;
  return has_64bit(inst) ? compare<Int128> : compare<int64_t>;
}
inline Execute select_function(const Inst& inst) {
  const auto is_f = [](const Operand& o) {
    return o.type == Type::kF && o.form == ImmediateForm::kScalar;
  };
  if (is_f(inst.dst) && is_f(inst.src[0]) && is_f(inst.src[1])) {
    if (inst.condition == Condition::kGe) return float_minmax<true>;
    if (inst.condition == Condition::kLt) return float_minmax<false>;
  }
  if (has_float_source(inst)) return select<double>;
  return has_64bit(inst) ? select<Int128> : select<int64_t>;
}
inline Execute conditional_select_function(const Inst& inst) {
  if (has_float_source(inst)) return conditional_select<double>;
  return has_64bit(inst) ? conditional_select<Int128> : conditional_select<int64_t>;
}

}  // namespace xesim
