// dpas: D(M x N) = C(M x N) + A(M x K) B(K x N). src0 = C, src1 = B in VNNI layout, src2 = A in
// rows. M is the repeat count, N the lanes, K = 8 steps of OPS elements.
//
// How the hardware rounds inside is not documented. Two models: kExact sums all products and C in
// double and rounds once; kStepwise rounds to float after every depth step. A kernel whose results
// differ visibly is fragile.
#include "insns/dpas.hpp"

#include <immintrin.h>

#include "insns/common.hpp"

namespace xesim {
namespace {

struct Shape {
  int rows, lanes, ops, bits1, bits2;
};

int operations(Type b, Type a) {  // OPS: elements of K per depth step
  if (a == Type::kTF32) return 1;
  if (is_float(a)) return 2;
  return type_bits(a) <= 4 && type_bits(b) <= 4 ? 8 : 4;
}

int64_t packed_element(const uint8_t* base, int index, Type type) {
  const int bits = type_bits(type);
  const int bit = index * bits;
  const uint32_t raw = static_cast<uint32_t>(base[bit / 8]) >> bit % 8;
  if (bits == 8) return is_signed(type) ? static_cast<int8_t>(raw) : static_cast<uint8_t>(raw);
  const uint32_t value = raw & ((1u << bits) - 1);
  if (is_signed(type) && value >> (bits - 1) != 0) return static_cast<int64_t>(value) - (1 << bits);
  return value;
}

// Element k of column n of B: VNNI, depth steps packed into dwords.
int b_index(const Shape& s, int k, int n) {
  const int step = k / s.ops, within = k % s.ops;
  const int steps_per_dword = std::max(1, 32 / (s.ops * s.bits1));
  const int dword = step / steps_per_dword * s.lanes + n;
  return dword * (32 / s.bits1) + step % steps_per_dword * s.ops + within;
}

template <Type type>
float float_element(const uint8_t* base, int index) {
  if constexpr (type == Type::kTF32) {
    uint32_t bits;
    std::memcpy(&bits, base + 4 * index, 4);
    return std::bit_cast<float>(bits & 0xffffe000u);
  } else {
    uint16_t bits;
    std::memcpy(&bits, base + 2 * index, 2);
    if constexpr (type == Type::kBF)
      return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
    else
      return _cvtsh_ss(bits);
  }
}

template <Type type, int kLanes>
void multiply_floats(const uint8_t* a, const uint8_t* b, int rows, float* d, bool stepwise) {
  constexpr int ops = type == Type::kTF32 ? 1 : 2;
  constexpr int depth = 8 * ops;
  // B as float, [k][n].
  alignas(64) float B[depth][kLanes];
  for (int step = 0; step < 8; ++step) {
    for (int n = 0; n < kLanes; ++n) {
      for (int o = 0; o < ops; ++o)
        B[step * ops + o][n] = float_element<type>(b, (step * kLanes + n) * ops + o);
    }
  }
  for (int m = 0; m < rows; ++m) {
    alignas(64) float A[depth];
    for (int k = 0; k < depth; ++k) A[k] = float_element<type>(a, m * depth + k);
    float* row = d + m * kLanes;
    if (stepwise) {
      for (int step = 0; step < 8; ++step) {
        for (int n = 0; n < kLanes; ++n) {
          double sum = row[n];
          for (int o = 0; o < ops; ++o) {
            sum +=
                static_cast<double>(A[step * ops + o]) * static_cast<double>(B[step * ops + o][n]);
          }
          row[n] = static_cast<float>(sum);
        }
      }
    } else {
      alignas(64) double sum[kLanes];
      for (int n = 0; n < kLanes; ++n) sum[n] = row[n];
      for (int k = 0; k < depth; ++k) {
        const double x = A[k];
        for (int n = 0; n < kLanes; ++n) sum[n] += x * static_cast<double>(B[k][n]);
      }
      for (int n = 0; n < kLanes; ++n) row[n] = static_cast<float>(sum[n]);
    }
  }
}

void require_legal(const Isa& isa, const Inst& inst) {
  const Type d = inst.dst.type, c = inst.src[0].type, b = inst.src[1].type, a = inst.src[2].type;
  const bool narrow_sums = isa.family != Family::kDg2;  // 16-bit accumulators
  const auto accumulates = [&](Type t, Type element) {
    return t == Type::kF || (narrow_sums && t == element);
  };
  bool legal = false;
  if (is_float(a)) {
    const bool tf32 =
        a == Type::kTF32 && isa.family != Family::kDg2 && d == Type::kF && c == Type::kF;
    legal =
        a == b &&
        (tf32 || ((a == Type::kHF || a == Type::kBF) && accumulates(d, a) && accumulates(c, a)));
  } else {
    const auto packed = [](Type t) { return type_bits(t) <= 8 && !is_float(t); };
    legal = (d == Type::kD || d == Type::kUD) && (c == Type::kD || c == Type::kUD) && packed(a) &&
            packed(b);
  }
  if (!legal)
    fail("dpas does not take these types: %s, %s, %s, %s", std::string(type_name(d)).c_str(),
         std::string(type_name(c)).c_str(), std::string(type_name(b)).c_str(),
         std::string(type_name(a)).c_str());
  if (inst.exec_size != isa.dpas_lanes) {
    fail("dpas is %d lanes wide on %s, this one has %d", isa.dpas_lanes, isa.name, inst.exec_size);
  }
  if (inst.saturate && is_float(a)) fail("dpas saturates integers only");
  if (inst.systolic_depth != 8)
    fail("dpas has a systolic depth of 8, this one says %d", inst.systolic_depth);
}

// Definedness: row m of D needs row m of A and C, and all of B.
void track(Thread& t, const Inst& inst, const Shape& s, int c_bytes, int d_bytes) {
  const uint32_t a_row = static_cast<uint32_t>(8 * s.ops * s.bits2 / 8);
  const uint32_t b_bytes = static_cast<uint32_t>(8 * s.ops * s.lanes * s.bits1 / 8);
  const bool b_defined = t.grf_defined.test(inst.src[1].byte, b_bytes);
  uint32_t rows = 0;
  for (int m = 0; m < s.rows; ++m) {
    bool defined =
        b_defined && t.grf_defined.test(inst.src[2].byte + static_cast<uint32_t>(m) * a_row, a_row);
    if (inst.src[0].exists()) {
      const uint32_t row = static_cast<uint32_t>(s.lanes * c_bytes);
      defined &= inst.src[0].file == File::kAcc
                     ? t.acc_defined.test(inst.src[0].byte + static_cast<uint32_t>(m) * row, row)
                     : t.grf_defined.test(inst.src[0].byte + static_cast<uint32_t>(m) * row, row);
    }
    rows |= static_cast<uint32_t>(defined) << m;
  }
  const uint32_t row = static_cast<uint32_t>(s.lanes * d_bytes);
  for (int m = 0; m < s.rows; ++m)
    t.grf_defined.set(inst.dst.byte + static_cast<uint32_t>(m) * row, row, rows >> m & 1);
}

void require_inside(const Thread& t, const Operand& o, int bytes, const char* name) {
  if (!o.exists()) return;
  const uint32_t end =
      static_cast<uint32_t>(t.launch->program->grf_count * t.launch->isa->grf_bytes);
  if (o.file == File::kGrf && o.byte + static_cast<uint32_t>(bytes) > end)
    fail("%s of dpas runs past the last register", name);
}

}  // namespace

void dpas(Thread& t, const Inst& inst) {
  const Isa& isa = *t.launch->isa;
  const Type d_type = inst.dst.type,
             c_type = inst.src[0].exists() ? inst.src[0].type : inst.dst.type;
  const Type b_type = inst.src[1].type, a_type = inst.src[2].type;
  const Shape s{inst.repeat_count, isa.dpas_lanes, operations(b_type, a_type), type_bits(b_type),
                type_bits(a_type)};
  const int c_bytes = type_bytes(c_type), d_bytes = type_bytes(d_type), cells = s.rows * s.lanes;
  require_inside(t, inst.dst, cells * d_bytes, "dst");
  require_inside(t, inst.src[0], cells * c_bytes, "src0");
  require_inside(t, inst.src[1], 8 * s.ops * s.lanes * s.bits1 / 8, "src1");
  require_inside(t, inst.src[2], s.rows * 8 * s.ops * s.bits2 / 8, "src2");
  const uint8_t* b = t.grf + inst.src[1].byte;
  const uint8_t* a = t.grf + inst.src[2].byte;
  uint8_t* d = file_bytes(t, inst.dst.file) + inst.dst.byte;
  const uint8_t* c =
      inst.src[0].exists() ? file_bytes(t, inst.src[0].file) + inst.src[0].byte : nullptr;

  if (is_float(a_type)) {
    alignas(64) float sums[8 * 16];
    if (c == nullptr) {
      std::fill_n(sums, cells, 0.0f);
    } else if (c_type == Type::kF) {
      std::memcpy(sums, c, static_cast<size_t>(4 * cells));
    } else {
      for (int i = 0; i < cells; ++i) {
        sums[i] =
            c_type == Type::kBF ? float_element<Type::kBF>(c, i) : float_element<Type::kHF>(c, i);
      }
    }
    const bool stepwise = t.launch->checks.dpas == Checks::Dpas::kStepwise;
    const auto multiply = [&]<Type type>() {
      if (s.lanes == 16)
        multiply_floats<type, 16>(a, b, s.rows, sums, stepwise);
      else
        multiply_floats<type, 8>(a, b, s.rows, sums, stepwise);
    };
    if (a_type == Type::kBF)
      multiply.template operator()<Type::kBF>();
    else if (a_type == Type::kHF)
      multiply.template operator()<Type::kHF>();
    else
      multiply.template operator()<Type::kTF32>();
    if (d_type == Type::kF) {
      std::memcpy(d, sums, static_cast<size_t>(4 * cells));
    } else {
      for (int i = 0; i < cells; ++i) {
        const uint16_t bits =
            static_cast<uint16_t>(encode_float(sums[i], d_type, Rounding::kNearest));
        std::memcpy(d + 2 * i, &bits, 2);
      }
    }
  } else {
    const int depth = 8 * s.ops;
    int64_t sums[8 * 16];
    for (int m = 0; m < s.rows; ++m) {
      for (int n = 0; n < s.lanes; ++n) {
        int64_t sum = 0;
        if (c != nullptr) {
          uint32_t bits;
          std::memcpy(&bits, c + 4 * (m * s.lanes + n), 4);
          sum = c_type == Type::kD ? static_cast<int32_t>(bits) : static_cast<int64_t>(bits);
        }
        for (int k = 0; k < depth; ++k) {
          sum += packed_element(a, m * depth + k, a_type) *
                 packed_element(b, b_index(s, k, n), b_type);
        }
        if (inst.saturate) {
          sum = d_type == Type::kD ? std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX)
                                   : std::clamp<int64_t>(sum, 0, UINT32_MAX);
        }
        sums[m * s.lanes + n] = sum;
      }
    }
    for (int i = 0; i < cells; ++i) {
      const uint32_t bits = static_cast<uint32_t>(sums[i]);
      std::memcpy(d + 4 * i, &bits, 4);
    }
  }
  if (t.track) track(t, inst, s, c_bytes, d_bytes);
}

void dpas_nothing(Thread&, const Inst&) {}

Execute dpas_function(const Isa& isa, const Inst& inst) {
  require_legal(isa, inst);
  return dpas;
}

// dg2: {Atomic} dpas with a null src0 and src1 and src2 in the same register only keeps the next
// one, which has the same destination, from re-reading its operands; the next must still see the
// old sums.
bool is_dummy_dpas(const Isa& isa, const Inst& inst, const Inst& next) {
  return isa.family == Family::kDg2 && inst.op == Op::kDpas && inst.atomic &&
         !inst.src[0].exists() && inst.src[1].number == inst.src[2].number &&
         next.op == Op::kDpas && next.dst.file == inst.dst.file && next.dst.byte == inst.dst.byte;
}

}  // namespace xesim
