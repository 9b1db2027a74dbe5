// dpas of every pair of operand types: D = C + A B with the last 1 .. 8 rows of A into the first
// rows of C, the other rows as they were; last, eight rows without C.
#include "esimd.hpp"

constexpr int kLanes = XE_LANES;
using Element = xmx::dpas_argument_type;

constexpr int bits_of(Element e) {
  switch (e) {
    case Element::u2:
    case Element::s2:
      return 2;
    case Element::u4:
    case Element::s4:
      return 4;
    case Element::u8:
    case Element::s8:
      return 8;
    case Element::tf32:
      return 32;
    default:
      return 16;
  }
}
constexpr int depth_of(Element b, Element a) {  // K: eight steps of 32 bits, at most eight elements
  const int widest = std::max(bits_of(b), bits_of(a));
  return 8 * std::min(8, 32 / widest);
}

template <int kRows, Element kB, Element kA, class Sum, int kBn, int kAn>
ESIMD_INLINE void rows(simd<Sum, 8 * kLanes> C, simd<int, kBn> B, simd<int, kAn> A, Sum* d) {
  constexpr int kRowDwords = kAn / 8;
  simd<int, kRows * kRowDwords> a =
      A.template select<kRows * kRowDwords, 1>((8 - kRows) * kRowDwords);
  simd<Sum, kRows * kLanes> c = C.template select<kRows * kLanes, 1>(0);
  C.template select<kRows * kLanes, 1>(0) =
      xmx::dpas<8, kRows, Sum, Sum, int, int, kB, kA>(c, B, a);
  store<Sum, 8 * kLanes>(d + (kRows - 1) * 8 * kLanes, C);
  if constexpr (kRows < 8) {
    rows<kRows + 1, kB, kA>(load<Sum, 8 * kLanes>(d - 8 * kLanes), B, A, d);
  }
}

// c has the same address as d - 8 kLanes: the input is read anew for each count of rows.
template <Element kB, Element kA, class Sum>
ESIMD_INLINE void all_rows(const int* a, const int* b, Sum* cd) {
  constexpr int K = depth_of(kB, kA);
  const auto A = load<int, 8 * K * bits_of(kA) / 32>(a);
  const auto B = load<int, kLanes * K * bits_of(kB) / 32>(b);
  rows<1, kB, kA>(load<Sum, 8 * kLanes>(cd), B, A, cd + 8 * kLanes);
  simd<Sum, 8 * kLanes> D = xmx::dpas<8, 8, Sum, int, int, kB, kA>(B, A);
  store<Sum, 8 * kLanes>(cd + 9 * 8 * kLanes, D);
}

#define PAIR(B, A, SUM, NAME)                           \
  XE_KERNEL NAME(const int* a, const int* b, SUM* cd) { \
    all_rows<Element::B, Element::A, SUM>(a, b, cd);    \
  }
#define INTEGERS(B)               \
  PAIR(B, s8, int, dpas_##B##_s8) \
  PAIR(B, u8, int, dpas_##B##_u8) \
  PAIR(B, s4, int, dpas_##B##_s4) \
  PAIR(B, u4, int, dpas_##B##_u4) \
  PAIR(B, s2, int, dpas_##B##_s2) \
  PAIR(B, u2, int, dpas_##B##_u2)
INTEGERS(s8)
INTEGERS(u8)
INTEGERS(s4)
INTEGERS(u4)
INTEGERS(s2)
INTEGERS(u2)
PAIR(u8, u8, unsigned, dpas_u8_u8_unsigned)
PAIR(bf16, bf16, float, dpas_bf16)
PAIR(fp16, fp16, float, dpas_fp16)
#if XE_LANES == 16
PAIR(tf32, tf32, float, dpas_tf32)
PAIR(bf16, bf16, ::bf16, dpas_bf16_sums)
PAIR(fp16, fp16, sycl::half, dpas_fp16_sums)
#endif
