// 32 x 32-bit multiplication in two steps through the wide accumulator (mul acc, mach, macl), and
// the instructions that leave their carry in it (addc, subb). mac reads acc0 as an ordinary
// register.
#pragma once

#include "insns/arithmetic.hpp"

namespace xesim {

inline uint32_t acc_defined_lanes(const Thread& t, const Inst& inst) {
  if (!t.track) return ~0u;
  uint32_t mask = 0;
  for (int i = 0; i < inst.exec_size; ++i) {
    mask |= static_cast<uint32_t>(t.acc_defined.test(static_cast<uint32_t>(4 * i), 4)) << i;
  }
  return mask;
}
inline void set_acc(Thread& t, int lane, Int128 value, bool defined) {
  t.wide_acc[lane] = value;
  const uint32_t low = static_cast<uint32_t>(value);
  std::memcpy(t.acc + 4 * lane, &low, 4);
  if (t.track) t.acc_defined.set(static_cast<uint32_t>(4 * lane), 4, defined);
}

// mul acc0:d, a:d, b:uw: the product stays whole.
inline void mul_to_acc(Thread& t, const Inst& inst) {
  integer_lanes<Mul, 2, int64_t>(t, inst);
  const int n = inst.exec_size;
  Lanes<int64_t> a, b;
  read_integers(t, inst.src[0], n, a);
  read_integers(t, inst.src[1], n, b);
  const uint32_t active = t.active_lanes(inst);
  for (int i = 0; i < n; ++i) {
    const uint32_t lane = inst.dst.byte / 4 + static_cast<uint32_t>(i);
    if ((active >> i & 1) != 0 && lane < 32) t.wide_acc[lane] = static_cast<Int128>(a[i]) * b[i];
  }
}

// acc + ((a * (b >> 16)) << 16), the second half of a * b. Which half of it is the result: `high`.
template <bool high>
void multiply_high(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  Lanes<int64_t> a, b, r{};
  read_integers(t, inst.src[0], n, a);
  read_integers(t, inst.src[1], n, b);
  const uint32_t active = t.active_lanes(inst);
  const uint32_t defined = sources_defined<2>(t, inst) & acc_defined_lanes(t, inst);
  Inst result = inst;
  result.write_acc = false;
  Lanes<Int128> full;
  for (int i = 0; i < n; ++i) {
    const Type type = inst.src[1].type;
    const int64_t upper =
        is_signed(type) ? b[i] >> 16 : static_cast<int64_t>(static_cast<uint32_t>(b[i]) >> 16);
    full[i] = t.wide_acc[i] + (static_cast<Int128>(a[i]) * upper << 16);
    r[i] = static_cast<int64_t>(high ? static_cast<int32_t>(full[i] >> 32)
                                     : static_cast<int32_t>(full[i]));
    if (high && !is_signed(inst.dst.type)) r[i] = static_cast<uint32_t>(r[i]);
    if (!high && !is_signed(inst.dst.type)) r[i] = static_cast<uint32_t>(r[i]);
  }
  finish_integers(t, result, r, active, defined);
  if (!high) return;
  for (int i = 0; i < n; ++i) {
    if (active >> i & 1) set_acc(t, i, static_cast<uint32_t>(full[i]), defined >> i & 1);
  }
}

template <bool subtract>
void with_carry(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  Lanes<int64_t> a, b, r{};
  read_integers(t, inst.src[0], n, a);
  read_integers(t, inst.src[1], n, b);
  const uint32_t active = t.active_lanes(inst), defined = sources_defined<2>(t, inst);
  Inst result = inst;
  result.write_acc = false;
  Lanes<uint32_t> carry;
  for (int i = 0; i < n; ++i) {
    const uint32_t x = static_cast<uint32_t>(a[i]), y = static_cast<uint32_t>(b[i]);
    const uint32_t low = subtract ? x - y : x + y;
    carry[i] = subtract ? x < y : low < x;
    r[i] = low;
  }
  finish_integers(t, result, r, active, defined);
  for (int i = 0; i < n; ++i) {
    if (active >> i & 1) set_acc(t, i, carry[i], defined >> i & 1);
  }
}

// dst = acc0 + a * b; acc0 holds the destination's type.
inline void multiply_accumulate(Thread& t, const Inst& inst) {
  Inst mad = inst;
  mad.src[2] = inst.src[1];
  mad.src[1] = inst.src[0];
  Operand acc;
  acc.file = File::kAcc;
  acc.type = inst.dst.type;
  acc.vertical = 1;
  acc.width = 1;
  acc.horizontal = 0;
  mad.src[0] = acc;
  arithmetic_function<Mad, 3>(mad)(t, mad);
}

}  // namespace xesim
