#include "insns/lanes.hpp"

#include <x86intrin.h>

#include "machine/program.hpp"

namespace xesim {

uint8_t* file_bytes(Thread& t, File file) {
  switch (file) {
    case File::kGrf:
      return t.grf;
    case File::kAcc:
      return t.acc;
    case File::kFlag:
      return reinterpret_cast<uint8_t*>(t.flag);
    case File::kAddress:
      return reinterpret_cast<uint8_t*>(t.a0);
    case File::kCr:
      return reinterpret_cast<uint8_t*>(t.cr0);
    case File::kSr:
      return reinterpret_cast<uint8_t*>(t.sr0);
    default:
      return nullptr;
  }
}

uint64_t special_register(const Thread& t, const Operand& o) {
  switch (o.file) {
    case File::kCe:
      return t.execution_mask;
    case File::kIp:
      return t.current->ip;
    case File::kTm:
      return o.subregister == 0 ? __rdtsc() & 0xffffffff : 0;
    default:
      fail("this special register is not modelled (file %d, number %d)", static_cast<int>(o.file),
           o.number);
  }
}

uint32_t indirect_byte(const Thread& t, const Operand& o, int lane, bool is_destination) {
  int index = o.address, element;
  if (is_destination) {
    element = lane * o.horizontal;
  } else if (o.vxh) {
    index += lane / o.width;
    element = lane % o.width * o.horizontal;
  } else {
    element = region_offset(o, lane);
  }
  if (index >= 16) fail("the indirect operand reads a0.%d, which does not exist", index);
  if (t.track && (t.a0_defined >> index & 1) == 0) {
    fail("%s uses a0.%d, which was never given a value",
         is_destination ? "dst (indirect)" : "an indirect source", index);
  }
  const int bytes = type_bytes(o.type);
  const int64_t byte = static_cast<int64_t>(t.a0[index]) + o.offset + element * bytes;
  const int64_t end = static_cast<int64_t>(t.launch->program->grf_count) * t.launch->isa->grf_bytes;
  if (byte < 0 || byte + bytes > end) {
    fail(
        "the indirect operand r[a0.%d=%u, %d] of lane %d is at byte %lld, outside of the %lld "
        "bytes of registers",
        index, t.a0[index], o.offset, lane, static_cast<long long>(byte),
        static_cast<long long>(end));
  }
  return static_cast<uint32_t>(byte);
}

Type immediate_type(const Operand& o) {
  switch (o.form) {
    case ImmediateForm::kV:
      return Type::kW;
    case ImmediateForm::kUV:
      return Type::kUW;
    case ImmediateForm::kVF:
      return Type::kF;
    default:
      return o.type;
  }
}

uint64_t immediate_lane(const Operand& o, int i) {
  const uint32_t packed = static_cast<uint32_t>(o.immediate);
  if (o.form != ImmediateForm::kVF) i *= o.horizontal;  // see spread_packed_immediates
  switch (o.form) {
    case ImmediateForm::kV:
      return static_cast<uint16_t>(static_cast<int32_t>(packed << (28 - 4 * (i % 8))) >> 28);
    case ImmediateForm::kUV:
      return packed >> 4 * (i % 8) & 15;
    case ImmediateForm::kVF: {
      // sign, 3 bits of exponent biased by 3, 4 bits of mantissa; the pattern 0 is zero
      const uint32_t x = packed >> 8 * (i % 4) & 255;
      const uint32_t sign = (x & 0x80) << 24;
      if ((x & 0x7f) == 0) return sign;
      return sign | ((x >> 4 & 7) + 124) << 23 | (x & 15) << 19;
    }
    default:
      return o.immediate;
  }
}

// Sources and results that are denormals count as zeros. bf16 has a control of its own, on Xe2
// only.
static bool flushes_denormals(const Thread& t, Type type) {
  if (type != Type::kDF && type != Type::kF && type != Type::kHF) return false;
  const int keep_bit = type == Type::kDF ? 6 : type == Type::kHF ? 10 : 7;
  return (t.cr0[0] >> keep_bit & 1) == 0;
}

void read_doubles(const Thread& t, const Operand& o, int n, Lanes<double>& out) {
  const Type type = o.file == File::kImmediate ? immediate_type(o) : o.type;
  if (!is_float(type)) {
    Lanes<int64_t> integers;
    read_integers(t, o, n, integers);
    if (type == Type::kUQ) {
      for (int i = 0; i < n; ++i) out[i] = static_cast<double>(static_cast<uint64_t>(integers[i]));
    } else {
      for (int i = 0; i < n; ++i) out[i] = static_cast<double>(integers[i]);
    }
    return;
  }
  Lanes<uint64_t> bits;
  read_bits(t, o, n, bits);
  if (type == Type::kF || type == Type::kTF32) {
    for (int i = 0; i < n; ++i) out[i] = std::bit_cast<float>(static_cast<uint32_t>(bits[i]));
  } else if (type == Type::kBF) {
    for (int i = 0; i < n; ++i) out[i] = std::bit_cast<float>(static_cast<uint32_t>(bits[i] << 16));
  } else {
    for (int i = 0; i < n; ++i) out[i] = decode_float(bits[i], type);
  }
  if (flushes_denormals(t, type)) {
    const double smallest = type == Type::kDF ? 0x1p-1022 : type == Type::kHF ? 0x1p-14 : 0x1p-126;
    for (int i = 0; i < n; ++i)
      if (std::fabs(out[i]) < smallest) out[i] = std::copysign(0.0, out[i]);
  }
  if (o.absolute)
    for (int i = 0; i < n; ++i) out[i] = std::fabs(out[i]);
  if (o.negate)
    for (int i = 0; i < n; ++i) out[i] = -out[i];
}

uint32_t defined_lanes(const Thread& t, const Operand& o, int n) {
  const uint32_t all = all_lanes(n);
  if (!t.track) return all;
  const int bytes = type_bytes(o.type);
  if (o.file == File::kGrf) {
    uint32_t mask = 0;
    if (!o.indirect) {
      const int last =
          region_offset(o, n - 1);  // offsets grow with the lane inside a row; rows too
      const int extent =
          std::max(last, region_offset(o, std::min(n, static_cast<int>(o.width)) - 1));
      if (t.grf_defined.test(o.byte, static_cast<uint32_t>((extent + 1) * bytes))) return all;
    }
    for (int i = 0; i < n; ++i) {
      const uint32_t byte = o.indirect
                                ? indirect_byte(t, o, i, false)
                                : o.byte + static_cast<uint32_t>(region_offset(o, i) * bytes);
      mask |= static_cast<uint32_t>(t.grf_defined.test(byte, static_cast<uint32_t>(bytes))) << i;
    }
    return mask;
  }
  if (o.file == File::kAcc) {
    uint32_t mask = 0;
    for (int i = 0; i < n; ++i) {
      const uint32_t byte = o.byte + static_cast<uint32_t>(region_offset(o, i) * bytes);
      mask |= static_cast<uint32_t>(t.acc_defined.test(byte, static_cast<uint32_t>(bytes))) << i;
    }
    return mask;
  }
  if (o.file == File::kFlag) {
    // As data, a flag is undefined if nothing ever wrote a bit of it: comparisons write the bits of
    // active lanes only, and compilers save, mask and count flags whole.
    const uint32_t reg = o.byte / 4, first = o.byte % 4 * 8;
    const uint32_t need = static_cast<uint32_t>(((uint64_t{1} << type_bits(o.type)) - 1) << first);
    return (t.flag_defined[reg] & need) != 0 ? all : 0;
  }
  if (o.file == File::kAddress) {
    const uint32_t need = ((1u << (bytes + 1) / 2) - 1) << o.byte / 2;
    return (t.a0_defined & need) == need ? all : 0;
  }
  return all;
}

namespace {

// Byte of lane i of the destination in its file.
uint32_t destination_byte(const Thread& t, const Operand& d, int i) {
  if (d.indirect) return indirect_byte(t, d, i, true);
  return d.byte + static_cast<uint32_t>(i * d.horizontal * type_bytes(d.type));
}

template <class Element, class T>
void scatter(Thread& t, uint8_t* file, const Operand& d, int n, const Lanes<T>& bits,
             uint32_t active) {
  if (!d.indirect && d.horizontal <= 1 && active == all_lanes(n)) {
    uint8_t* base = file + d.byte;
    if constexpr (sizeof(Element) == sizeof(T)) {
      std::memcpy(base, bits.v, sizeof(Element) * static_cast<size_t>(n));
    } else {
      Lanes<Element> narrow;
      for (int i = 0; i < n; ++i) narrow[i] = static_cast<Element>(bits[i]);
      std::memcpy(base, narrow.v, sizeof(Element) * static_cast<size_t>(n));
    }
    return;
  }
  for (int i = 0; i < n; ++i) {
    if ((active >> i & 1) == 0) continue;
    const Element x = static_cast<Element>(bits[i]);
    std::memcpy(file + destination_byte(t, d, i), &x, sizeof x);
  }
}

void mark_written(Thread& t, const Operand& d, int n, uint32_t active, uint32_t defined) {
  const uint32_t bytes = static_cast<uint32_t>(type_bytes(d.type));
  switch (d.file) {
    case File::kGrf:
    case File::kAcc: {
      const bool dense = !d.indirect && d.horizontal <= 1 && active == all_lanes(n);
      if (dense && ((defined & active) == active || (defined & active) == 0)) {
        const uint32_t total = bytes * static_cast<uint32_t>(n);
        if (d.file == File::kGrf)
          t.grf_defined.set(d.byte, total, defined != 0);
        else
          t.acc_defined.set(d.byte, total, defined != 0);
        return;
      }
      for (int i = 0; i < n; ++i) {
        if ((active >> i & 1) == 0) continue;
        const uint32_t byte = destination_byte(t, d, i);
        if (d.file == File::kGrf)
          t.grf_defined.set(byte, bytes, defined >> i & 1);
        else
          t.acc_defined.set(byte, bytes, defined >> i & 1);
      }
      return;
    }
    case File::kFlag: {
      const uint32_t mask =
          static_cast<uint32_t>(((uint64_t{1} << type_bits(d.type)) - 1) << d.byte % 4 * 8);
      if ((defined & active) == active)
        t.flag_defined[d.byte / 4] |= mask;
      else
        t.flag_defined[d.byte / 4] &= ~mask;
      return;
    }
    case File::kAddress:
      for (int i = 0; i < n; ++i) {
        if ((active >> i & 1) == 0) continue;
        const uint32_t mask = ((1u << (bytes + 1) / 2) - 1) << destination_byte(t, d, i) / 2;
        if (defined >> i & 1)
          t.a0_defined |= mask;
        else
          t.a0_defined &= ~mask;
      }
      return;
    default:
      return;
  }
}

}  // namespace

Lanes<uint8_t> defined_bytes(const Thread& t, const Operand& o, int n) {
  Lanes<uint8_t> known;
  const int bytes = type_bytes(o.type);
  const uint32_t lanes = defined_lanes(t, o, n);
  for (int i = 0; i < n; ++i) {
    known[i] = (lanes >> i & 1) != 0 ? 0xff : 0;
    if (known[i] != 0 || o.file != File::kGrf) continue;
    const uint32_t first = o.indirect ? indirect_byte(t, o, i, false)
                                      : o.byte + static_cast<uint32_t>(region_offset(o, i) * bytes);
    for (int b = 0; b < bytes; ++b) {
      known[i] |=
          static_cast<uint8_t>(t.grf_defined.test(first + static_cast<uint32_t>(b), 1) << b);
    }
  }
  return known;
}

void mark_bytes(Thread& t, const Operand& d, int n, uint32_t active,
                const Lanes<uint8_t>& defined) {
  if (d.file != File::kGrf) return;
  for (int i = 0; i < n; ++i) {
    if ((active >> i & 1) == 0) continue;
    const uint32_t first = destination_byte(t, d, i);
    for (int b = 0; b < type_bytes(d.type); ++b) {
      t.grf_defined.set(first + static_cast<uint32_t>(b), 1, (defined[i] >> b & 1) != 0);
    }
  }
}

template <class T>
void write_bits(Thread& t, const Inst& inst, const Lanes<T>& bits, uint32_t active,
                uint32_t defined) {
  const Operand& d = inst.dst;
  const int n = inst.exec_size;
  if (inst.write_acc && d.file != File::kAcc) {  // dg2: the result also goes to acc0
    Operand acc = d;
    acc.file = File::kAcc;
    acc.indirect = false;
    acc.byte = 0;
    acc.horizontal = 1;
    Inst also = inst;
    also.dst = acc;
    also.write_acc = false;
    write_bits(t, also, bits, active, defined);
  }
  if (d.file == File::kNull || d.file == File::kNone || active == 0) return;
  uint8_t* file = file_bytes(t, d.file);
  if (file == nullptr)
    fail("this special register cannot be written (file %d)", static_cast<int>(d.file));
  switch (type_bytes(d.type)) {
    case 1:
      scatter<uint8_t>(t, file, d, n, bits, active);
      break;
    case 2:
      scatter<uint16_t>(t, file, d, n, bits, active);
      break;
    case 4:
      scatter<uint32_t>(t, file, d, n, bits, active);
      break;
    default:
      scatter<uint64_t>(t, file, d, n, bits, active);
  }
  if (d.file == File::kAcc && !is_float(d.type) && type_bytes(d.type) == 4) {
    for (int i = 0; i < n; ++i) {
      const uint32_t lane = d.byte / 4 + static_cast<uint32_t>(i * d.horizontal);
      if ((active >> i & 1) == 0 || lane >= 32) continue;
      const uint32_t low = static_cast<uint32_t>(bits[i]);
      t.wide_acc[lane] = is_signed(d.type) ? static_cast<Int128>(static_cast<int32_t>(low)) : low;
    }
  }
  if (t.track) mark_written(t, d, n, active, defined);
}
template void write_bits(Thread&, const Inst&, const Lanes<uint16_t>&, uint32_t, uint32_t);
template void write_bits(Thread&, const Inst&, const Lanes<uint32_t>&, uint32_t, uint32_t);
template void write_bits(Thread&, const Inst&, const Lanes<uint64_t>&, uint32_t, uint32_t);

// `nearest` + `rest` in a rounding mode.
static double round_directed(double nearest, Int128 rest, Rounding rounding) {
  const bool down = rounding == Rounding::kDown || (rounding == Rounding::kZero && nearest > 0);
  const bool up = rounding == Rounding::kUp || (rounding == Rounding::kZero && nearest < 0);
  if (rest < 0 && down) return std::nextafter(nearest, -INFINITY);
  if (rest > 0 && up) return std::nextafter(nearest, INFINITY);
  return nearest;
}

template <class T>
void write_integers(Thread& t, const Inst& inst, const Lanes<T>& value, uint32_t active,
                    uint32_t defined) {
  const int n = inst.exec_size;
  const Type type = inst.dst.type;
  if (is_float(type)) {
    Lanes<double> wide;
    for (int i = 0; i < n; ++i) {
      // 64-bit integers do not fit a double: rounded as the thread does, or to odd where another
      // rounding follows.
      const double nearest = static_cast<double>(value[i]);
      const Int128 rest = static_cast<Int128>(value[i]) - static_cast<Int128>(nearest);
      wide[i] = type == Type::kDF ? round_directed(nearest, rest, rounding_of(t))
                                  : to_odd(nearest, static_cast<double>(rest));
    }
    return write_doubles(t, inst, wide, active, defined);
  }
  Lanes<uint64_t> bits;
  if (inst.saturate) {
    const int unused = 64 - type_bits(type);
    const T high =
        static_cast<T>(is_signed(type) ? ~uint64_t{0} >> 1 >> unused : ~uint64_t{0} >> unused);
    const T low = is_signed(type) ? -static_cast<T>(high) - 1 : T{0};
    for (int i = 0; i < n; ++i) bits[i] = static_cast<uint64_t>(std::clamp<T>(value[i], low, high));
  } else {
    for (int i = 0; i < n; ++i) bits[i] = static_cast<uint64_t>(value[i]);
  }
  write_bits(t, inst, bits, active, defined);
}
template void write_integers(Thread&, const Inst&, const Lanes<int64_t>&, uint32_t, uint32_t);
template void write_integers(Thread&, const Inst&, const Lanes<Int128>&, uint32_t, uint32_t);

void write_doubles(Thread& t, const Inst& inst, const Lanes<double>& value, uint32_t active,
                   uint32_t defined) {
  const int n = inst.exec_size;
  const Type type = inst.dst.type;
  const Rounding rounding = rounding_of(t);
  Lanes<uint64_t> bits;
  if (is_float(type)) {
    for (int i = 0; i < n; ++i) {
      double x = value[i];
      if (inst.saturate) x = x != x ? 0.0 : std::clamp(x, 0.0, 1.0);
      bits[i] = encode_float(x, type, rounding);
    }
    if (flushes_denormals(t, type)) {
      const uint64_t sign = uint64_t{1} << (type_bits(type) - 1);
      const uint64_t smallest = uint64_t{1} << format_of(type).mantissa_bits;
      for (int i = 0; i < n; ++i)
        if ((bits[i] & ~sign) < smallest) bits[i] &= sign;
    }
  } else {  // truncated towards zero and clamped; NaN gives 0
    const int n_bits = type_bits(type);
    const bool has_sign = is_signed(type);
    const double high = std::ldexp(1.0, n_bits - has_sign), low = has_sign ? -high : 0.0;
    const uint64_t most = (has_sign ? ~uint64_t{0} >> 1 : ~uint64_t{0}) >> (64 - n_bits);
    for (int i = 0; i < n; ++i) {
      const double x = std::trunc(value[i]);
      if (x != x)
        bits[i] = 0;
      else if (x >= high)
        bits[i] = most;
      else if (x <= low)
        bits[i] = has_sign ? ~most : 0;
      else
        bits[i] = x < 0 ? static_cast<uint64_t>(static_cast<int64_t>(x)) : static_cast<uint64_t>(x);
    }
  }
  write_bits(t, inst, bits, active, defined);
}

void write_flag(Thread& t, const Inst& inst, uint32_t result, uint32_t active, uint32_t defined) {
  const int first = 16 * (inst.flag & 1) + inst.channel_offset;
  uint32_t& flag = t.flag[inst.flag >> 1];
  const uint32_t mask = first < 32 ? active << first : 0;
  flag = (flag & ~mask) | (first < 32 ? (result & active) << first : 0);
  if (t.track) {
    uint32_t& bits = t.flag_defined[inst.flag >> 1];
    bits = (bits & ~mask) | (first < 32 ? (defined & active) << first : 0);
  }
}

}  // namespace xesim
