// Operands as arrays of lanes: regions are gathered before and scattered after the arithmetic, so
// an instruction reads all of its sources before it writes.
#pragma once

#include <algorithm>
#include <cstring>

#include "insns/floats.hpp"
#include "machine/thread.hpp"

namespace xesim {

constexpr int kMaxLanes = 32;

template <class T>
struct Lanes {
  alignas(64) T v[kMaxLanes];
  T& operator[](int i) { return v[i]; }
  const T& operator[](int i) const { return v[i]; }
};
using Int128 = __int128;

inline Rounding rounding_of(const Thread& t) { return static_cast<Rounding>(t.cr0[0] >> 4 & 3); }

// Float arithmetic as the host does it: round to nearest, denormals kept.
inline bool native_floats(const Thread& t) { return (t.cr0[0] & 0xB0) == 0x80; }

// Bytes of a register file that direct operands address; null for those that are not stored.
uint8_t* file_bytes(Thread& t, File file);
// Values of ce0, ip, tm0, sr0, cr0, ... ; faults for registers that nothing here models.
uint64_t special_register(const Thread& t, const Operand& o);
// First byte in the GRF of lane i of an indirect operand; faults outside of the register file.
uint32_t indirect_byte(const Thread& t, const Operand& o, int lane, bool is_destination);

// Element offset of lane i in a source region, in elements.
inline int region_offset(const Operand& o, int i) {
  return o.width == 1 ? i * o.vertical : i / o.width * o.vertical + i % o.width * o.horizontal;
}
inline bool is_scalar(const Operand& o) {
  return o.vertical == 0 && (o.width == 1 || o.horizontal == 0);
}
inline bool is_contiguous(const Operand& o, int n) {
  return (o.horizontal == 1 && (o.vertical == o.width || n <= o.width)) ||
         (o.width == 1 && o.vertical == 1);
}

uint64_t immediate_lane(const Operand& o, int i);  // bits, of the type immediate_type() says
Type immediate_type(const Operand& o);             // v -> w, uv -> uw, vf -> f

// The raw bits of n lanes, zero-extended. T is the unsigned type of the element's size or wider.
template <class Element, class T>
void gather(const uint8_t* base, const Operand& o, int n, Lanes<T>& out) {
  if (is_contiguous(o, n)) {
    if constexpr (sizeof(Element) == sizeof(T)) {
      std::memcpy(out.v, base, sizeof(Element) * static_cast<size_t>(n));
    } else {
      Lanes<Element> raw;
      std::memcpy(raw.v, base, sizeof(Element) * static_cast<size_t>(n));
      for (int i = 0; i < n; ++i) out[i] = raw[i];
    }
    return;
  }
  if (is_scalar(o)) {
    Element x;
    std::memcpy(&x, base, sizeof x);
    for (int i = 0; i < n; ++i) out[i] = x;
    return;
  }
  for (int i = 0; i < n; ++i) {
    Element x;
    std::memcpy(&x, base + static_cast<size_t>(region_offset(o, i)) * sizeof(Element), sizeof x);
    out[i] = x;
  }
}

template <class T>
void read_bits(const Thread& t, const Operand& o, int n, Lanes<T>& out) {
  if (o.file == File::kImmediate) {
    if (o.form == ImmediateForm::kScalar)
      std::fill_n(out.v, n, static_cast<T>(o.immediate));
    else
      for (int i = 0; i < n; ++i) out[i] = static_cast<T>(immediate_lane(o, i));
    return;
  }
  if (o.file == File::kNull) {
    std::fill_n(out.v, n, T{0});
    return;
  }
  const int bytes = type_bytes(o.type);
  if (o.indirect) {
    for (int i = 0; i < n; ++i) {
      uint64_t x = 0;
      std::memcpy(&x, t.grf + indirect_byte(t, o, i, false), static_cast<size_t>(bytes));
      out[i] = static_cast<T>(x);
    }
    return;
  }
  const uint8_t* base = file_bytes(const_cast<Thread&>(t), o.file);
  if (base == nullptr) {
    std::fill_n(out.v, n, static_cast<T>(special_register(t, o)));
    return;
  }
  base += o.byte;
  switch (bytes) {
    case 1:
      return gather<uint8_t>(base, o, n, out);
    case 2:
      return gather<uint16_t>(base, o, n, out);
    case 4:
      return gather<uint32_t>(base, o, n, out);
    default:
      if constexpr (sizeof(T) >= 8)
        return gather<uint64_t>(base, o, n, out);
      else
        fail("internal error: a 64-bit operand read as 32 bits");
  }
}

// Integers, sign- or zero-extended. Modifiers act at full precision: -(-2^31) is 2^31; in logic
// instructions a minus is a bitwise not.
template <class T>
void read_integers(const Thread& t, const Operand& o, int n, Lanes<T>& out, bool logic = false) {
  Lanes<uint64_t> bits;
  read_bits(t, o, n, bits);
  const Type type = o.file == File::kImmediate ? immediate_type(o) : o.type;
  const int unused = 64 - type_bits(type);
  if (is_signed(type)) {
    for (int i = 0; i < n; ++i) {
      out[i] = static_cast<T>(static_cast<int64_t>(bits[i] << unused) >> unused);
    }
  } else {
    for (int i = 0; i < n; ++i) out[i] = static_cast<T>(bits[i] << unused >> unused);
  }
  if (logic) {
    if (o.negate)
      for (int i = 0; i < n; ++i) out[i] = ~out[i];
    return;
  }
  if (o.absolute)
    for (int i = 0; i < n; ++i) out[i] = out[i] < 0 ? -out[i] : out[i];
  if (o.negate)
    for (int i = 0; i < n; ++i) out[i] = -out[i];
}

// Floats of any format, exact; integers too (up to 53 bits). Denormals of a format that the control
// register says to flush are zeros.
void read_doubles(const Thread& t, const Operand& o, int n, Lanes<double>& out);

// Lanes of formats that fit float exactly, with the host's denormals.
inline void read_floats(const Thread& t, const Operand& o, int n, Lanes<float>& out) {
  if (o.type == Type::kF && o.form == ImmediateForm::kScalar) {
    Lanes<uint32_t> bits;
    read_bits(t, o, n, bits);
    const uint32_t clear = o.absolute ? 0x7fffffffu : ~0u, flip = o.negate ? 0x80000000u : 0;
    if (o.absolute || o.negate)
      for (int i = 0; i < n; ++i) bits[i] = (bits[i] & clear) ^ flip;
    std::memcpy(out.v, bits.v, sizeof(float) * static_cast<size_t>(n));
    return;
  }
  Lanes<double> wide;
  read_doubles(t, o, n, wide);
  for (int i = 0; i < n; ++i) out[i] = static_cast<float>(wide[i]);
}

// Lanes of a source whose bytes are all defined; immediates and special registers always are.
uint32_t defined_lanes(const Thread& t, const Operand& o, int n);

// The same byte by byte: bit b of lane i for byte b of that lane.
Lanes<uint8_t> defined_bytes(const Thread& t, const Operand& o, int n);
// Says so of the active lanes of a destination in the GRF.
void mark_bytes(Thread& t, const Operand& d, int n, uint32_t active, const Lanes<uint8_t>& defined);

// Writes the low bytes of each active lane. `defined` says which lanes hold defined values.
template <class T>
void write_bits(Thread& t, const Inst& inst, const Lanes<T>& bits, uint32_t active,
                uint32_t defined);

// Result of an integer computation, saturated or wrapped to the destination's type.
template <class T>
void write_integers(Thread& t, const Inst& inst, const Lanes<T>& value, uint32_t active,
                    uint32_t defined);
// Rounds, saturates, converts to the destination's type, integers included.
void write_doubles(Thread& t, const Inst& inst, const Lanes<double>& value, uint32_t active,
                   uint32_t defined);

// Sets the flag bits of the active lanes to `result`.
void write_flag(Thread& t, const Inst& inst, uint32_t result, uint32_t active, uint32_t defined);

// Whether `a cond b` holds; any comparison with a NaN but ne is false.
template <class T>
bool holds(Condition c, T a, T b) {
  switch (c) {
    case Condition::kEq:
      return a == b;
    case Condition::kNe:
      return a != b;
    case Condition::kGt:
      return a > b;
    case Condition::kGe:
      return a >= b;
    case Condition::kLt:
      return a < b;
    case Condition::kLe:
      return a <= b;
    default:
      return false;
  }
}
template <class T>
uint32_t compare_lanes(Condition c, const Lanes<T>& a, const Lanes<T>& b, int n) {
  uint32_t mask = 0;
  const auto each = [&](auto compare) {
    for (int i = 0; i < n; ++i) mask |= static_cast<uint32_t>(compare(a[i], b[i])) << i;
  };
  switch (c) {
    case Condition::kEq:
      each([](T x, T y) { return x == y; });
      break;
    case Condition::kNe:
      each([](T x, T y) { return x != y; });
      break;
    case Condition::kGt:
      each([](T x, T y) { return x > y; });
      break;
    case Condition::kGe:
      each([](T x, T y) { return x >= y; });
      break;
    case Condition::kLt:
      each([](T x, T y) { return x < y; });
      break;
    case Condition::kLe:
      each([](T x, T y) { return x <= y; });
      break;
    case Condition::kUn:
      each([](T x, T y) { return x != x || y != y; });
      break;
    default:
      fail("the condition modifier %d has no meaning here", static_cast<int>(c));
  }
  return mask;
}

}  // namespace xesim
