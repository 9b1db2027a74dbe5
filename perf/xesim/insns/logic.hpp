// Bitwise and shift instructions, bit counts, dp4a. A minus on a source of and, or, xor, not is a
// bitwise not.
#pragma once

#include <bit>

#include "insns/common.hpp"

namespace xesim {

struct And {
  template <class T>
  static T apply(T a, T b) {
    return a & b;
  }
};
struct Or {
  template <class T>
  static T apply(T a, T b) {
    return a | b;
  }
};
struct Xor {
  template <class T>
  static T apply(T a, T b) {
    return a ^ b;
  }
};
struct Not {
  template <class T>
  static T apply(T a, T) {
    return ~a;
  }
};

template <class F, int kSources>
void logic(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  Lanes<int64_t> a, b{}, r;
  read_integers(t, inst.src[0], n, a, true);
  if constexpr (kSources == 2) read_integers(t, inst.src[1], n, b, true);
  for (int i = 0; i < n; ++i) r[i] = F::template apply<int64_t>(a[i], b[i]);
  // The condition sees the result in the width of the destination.
  const Type type = inst.dst.type;
  const int unused = 64 - type_bits(type);
  if (inst.condition != Condition::kNone && unused != 0) {
    for (int i = 0; i < n; ++i) {
      const uint64_t up = static_cast<uint64_t>(r[i]) << unused;
      r[i] =
          is_signed(type) ? static_cast<int64_t>(up) >> unused : static_cast<int64_t>(up >> unused);
    }
  }
  Inst wrapped = inst;
  wrapped.saturate = false;
  const bool is_zero = std::is_same_v<F, Xor> && same_integers(inst);
  finish_integers(t, wrapped, r, t.active_lanes(inst),
                  is_zero ? t.defined_predicate(inst) : sources_defined<kSources>(t, inst));
}

// Result bit = table[s0 + 2 s1 + 4 s2].
inline void boolean_function(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  Lanes<int64_t> a, b, c, r;
  read_integers(t, inst.src[0], n, a);
  read_integers(t, inst.src[1], n, b);
  read_integers(t, inst.src[2], n, c);
  for (int i = 0; i < n; ++i) r[i] = 0;
  for (int row = 0; row < 8; ++row) {
    if ((inst.function >> row & 1) == 0) continue;
    const int64_t x = row & 1 ? 0 : -1, y = row & 2 ? 0 : -1, z = row & 4 ? 0 : -1;
    for (int i = 0; i < n; ++i) r[i] |= (a[i] ^ x) & (b[i] ^ y) & (c[i] ^ z);
  }
  const Type type = inst.dst.type;
  const int unused = 64 - type_bits(type);
  for (int i = 0; i < n; ++i) {
    const uint64_t up = static_cast<uint64_t>(r[i]) << unused;
    r[i] =
        is_signed(type) ? static_cast<int64_t>(up) >> unused : static_cast<int64_t>(up >> unused);
  }
  finish_integers(t, inst, r, t.active_lanes(inst), sources_defined<3>(t, inst));
}

enum class Shift { kLeft, kLogical, kArithmetic, kRotateLeft, kRotateRight };

// Counts are modulo 32, or 64 when a 64-bit type takes part; rotations in the width of the
// destination.
template <Shift kind>
void shift(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  Lanes<Int128> a;
  Lanes<int64_t> count;
  read_integers(t, inst.src[0], n, a);
  read_integers(t, inst.src[1], n, count);
  const int source_bits = type_bits(
      inst.src[0].file == File::kImmediate ? immediate_type(inst.src[0]) : inst.src[0].type);
  const int result_bits = type_bits(inst.dst.type);
  const int mask = std::max(source_bits, result_bits) == 64 ? 63 : 31;
  const uint64_t source_mask = ~uint64_t{0} >> (64 - source_bits),
                 result_mask = ~uint64_t{0} >> (64 - result_bits);
  Lanes<Int128> r;
  for (int i = 0; i < n; ++i) {
    const int by = static_cast<int>(count[i]) & mask;
    if constexpr (kind == Shift::kLeft) {
      r[i] = a[i] << by;
    } else if constexpr (kind == Shift::kLogical) {
      // Of a negative (or negated) value: its bits in the source's own width.
      r[i] = static_cast<Int128>(
          (a[i] < 0 ? static_cast<uint64_t>(a[i]) & source_mask : static_cast<uint64_t>(a[i])) >>
          by);
    } else if constexpr (kind == Shift::kArithmetic) {
      r[i] = a[i] >> by;
    } else {
      const uint64_t x = static_cast<uint64_t>(a[i]) & result_mask;
      const int left =
          (kind == Shift::kRotateLeft ? by : result_bits - by % result_bits) % result_bits;
      r[i] = static_cast<Int128>(left == 0 ? x
                                           : (x << left | x >> (result_bits - left)) & result_mask);
    }
  }
  if (!inst.saturate && inst.condition != Condition::kNone) {  // the condition sees what is kept
    for (int i = 0; i < n; ++i) {
      const int unused = 64 - result_bits;
      const uint64_t up = static_cast<uint64_t>(r[i]) << unused;
      r[i] = is_signed(inst.dst.type) ? static_cast<Int128>(static_cast<int64_t>(up) >> unused)
                                      : static_cast<Int128>(up >> unused);
    }
  }
  finish_integers(t, inst, r, t.active_lanes(inst), sources_defined<2>(t, inst));
}

// Unsaturated shifts of at most 32 bits to the left or right, the common case.
template <Shift kind>
void short_shift(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  Lanes<int64_t> a, count;
  Lanes<uint32_t> r;
  read_integers(t, inst.src[0], n, a);
  read_integers(t, inst.src[1], n, count);
  const Operand& o = inst.src[0];
  const uint64_t source_mask =
      ~uint64_t{0} >> (64 - type_bits(o.file == File::kImmediate ? immediate_type(o) : o.type));
  for (int i = 0; i < n; ++i) {
    const int by = static_cast<int>(count[i]) & 31;
    if constexpr (kind == Shift::kLeft)
      r[i] = static_cast<uint32_t>(a[i]) << by;
    else if constexpr (kind == Shift::kArithmetic)
      r[i] = static_cast<uint32_t>(a[i] >> by);
    else
      r[i] = static_cast<uint32_t>(
          (a[i] < 0 ? static_cast<uint64_t>(a[i]) & source_mask : static_cast<uint64_t>(a[i])) >>
          by);
  }
  write_bits(t, inst, r, t.active_lanes(inst), sources_defined<2>(t, inst));
}
template <Shift kind>
Execute shift_function(const Inst& inst) {
  const bool plain = !has_64bit(inst) && !inst.saturate && inst.condition == Condition::kNone;
  if constexpr (kind == Shift::kLeft || kind == Shift::kLogical || kind == Shift::kArithmetic) {
    if (plain) return short_shift<kind>;
  }
  return shift<kind>;
}

enum class Bits { kLeadingZeros, kFirstHigh, kFirstLow, kCount, kReverse };

template <Bits kind>
void bit_count(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  Lanes<int64_t> a, r;
  read_integers(t, inst.src[0], n, a);
  for (int i = 0; i < n; ++i) {
    uint32_t x = static_cast<uint32_t>(a[i]);
    if constexpr (kind == Bits::kLeadingZeros) {
      r[i] = std::countl_zero(x);
    } else if constexpr (kind ==
                         Bits::kFirstHigh) {  // of signed values, the leading copies of the sign
      if (is_signed(inst.src[0].type) && x >> 31 != 0) x = ~x;
      r[i] = x == 0 ? 0xffffffff : std::countl_zero(x);
    } else if constexpr (kind == Bits::kFirstLow) {
      r[i] = x == 0 ? 0xffffffff : std::countr_zero(x);
    } else if constexpr (kind == Bits::kCount) {
      r[i] = std::popcount(x);
    } else {
      uint32_t reversed = 0;
      for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1) << (31 - bit);
      r[i] = reversed;
    }
  }
  finish_integers(t, inst, r, t.active_lanes(inst), sources_defined<1>(t, inst));
}

// src0 + the four byte products of src1 and src2.
inline void dot4(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  Lanes<int64_t> a, r;
  Lanes<uint32_t> b, c;
  read_integers(t, inst.src[0], n, a);
  read_bits(t, inst.src[1], n, b);
  read_bits(t, inst.src[2], n, c);
  const auto byte = [](uint32_t x, int k, Type type) {
    const uint8_t u = static_cast<uint8_t>(x >> 8 * k);
    return is_signed(type) ? static_cast<int64_t>(static_cast<int8_t>(u)) : static_cast<int64_t>(u);
  };
  for (int i = 0; i < n; ++i) {
    r[i] = a[i];
    for (int k = 0; k < 4; ++k)
      r[i] += byte(b[i], k, inst.src[1].type) * byte(c[i], k, inst.src[2].type);
  }
  finish_integers(t, inst, r, t.active_lanes(inst), sources_defined<3>(t, inst));
}

// bfe: src0 = width, src1 = offset, src2 = value.
inline void bit_field_extract(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  Lanes<int64_t> width, offset, value, r;
  read_integers(t, inst.src[0], n, width);
  read_integers(t, inst.src[1], n, offset);
  read_integers(t, inst.src[2], n, value);
  for (int i = 0; i < n; ++i) {
    const int w = static_cast<int>(width[i] & 31), o = static_cast<int>(offset[i] & 31);
    const uint32_t x = static_cast<uint32_t>(value[i]);
    if (w == 0)
      r[i] = 0;
    else if (is_signed(inst.dst.type)) {
      r[i] = w + o < 32 ? static_cast<int32_t>(x << (32 - w - o)) >> (32 - w)
                        : static_cast<int32_t>(x) >> o;
    } else {
      r[i] = w + o < 32 ? x << (32 - w - o) >> (32 - w) : x >> o;
    }
  }
  finish_integers(t, inst, r, t.active_lanes(inst), sources_defined<3>(t, inst));
}
// bfi1: the mask of `src0` ones from bit `src1`.
inline void bit_field_mask(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  Lanes<int64_t> width, offset, r;
  read_integers(t, inst.src[0], n, width);
  read_integers(t, inst.src[1], n, offset);
  for (int i = 0; i < n; ++i) {
    r[i] = static_cast<uint32_t>(((uint64_t{1} << (width[i] & 31)) - 1) << (offset[i] & 31));
  }
  finish_integers(t, inst, r, t.active_lanes(inst), sources_defined<2>(t, inst));
}
// bfi2: bits of src1 where the mask src0 is set, of src2 elsewhere; src1 is shifted to the mask's
// first one.
inline void bit_field_insert(Thread& t, const Inst& inst) {
  const int n = inst.exec_size;
  Lanes<int64_t> mask, insert, base, r;
  read_integers(t, inst.src[0], n, mask);
  read_integers(t, inst.src[1], n, insert);
  read_integers(t, inst.src[2], n, base);
  for (int i = 0; i < n; ++i) {
    const uint32_t m = static_cast<uint32_t>(mask[i]);
    const uint32_t moved = m == 0 ? 0 : static_cast<uint32_t>(insert[i]) << std::countr_zero(m);
    r[i] = static_cast<uint32_t>((moved & m) | (static_cast<uint32_t>(base[i]) & ~m));
  }
  finish_integers(t, inst, r, t.active_lanes(inst), sources_defined<3>(t, inst));
}

}  // namespace xesim
