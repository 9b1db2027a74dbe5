// Few rows of P against values in 8 bits, on the matrix unit: O += P V in fp16, whatever the type
// of the queries. Of every 4 keys, the even ones are widened together, and the odd ones: so P's
// columns are in that order.
//   Scales of rows belong to P. They are divided by a power of two that follows the largest of
//   them: so P times a scale neither leaves the range of fp16 nor vanishes there.
#pragma once

#include "xe/row_mma.hpp"

namespace xeflash::xe {

// O while rows of V in elements E are added, beside queries of type T: O times `unit` is in the
// unit in which the kernel stores O.
template <class T, class E, int R, int D>
struct ByteSums {
  // P is at most 2^kMostLog2, and times kUnit at most 2^15.
  static constexpr int kMostLog2 = kSlack - (std::is_same_v<T, bf16> ? kHeadroom : 0);
  static constexpr float kUnit =
      kMostLog2 > 0 ? 1 << (15 - kMostLog2) : static_cast<float>(int64_t{1} << (15 - kMostLog2));
  Tile<R, D> O;
  float largest = -1.f;  // a power of two that no scale exceeds, once there are any
  float unit = 1.f / (kUnit * Widened<E, 8>::kFactor);

  // Makes room for the scales of a block. Returns the factor that they need.
  template <int N>
  XF_INLINE float fit(const simd<float, N>& scales) {
    const simd<float, N> size = esimd::abs<float>(scales);
    if ((size > largest).any()) {
      constexpr uint32_t kExponent = 0x7f800000, kStep = 1u << 23;
      constexpr uint32_t kLeast = 47u << 23, kMost = 252u << 23;  // whose quotients are finite
      const float most = esimd::hmax<float>(size);
      uint32_t bits = __builtin_bit_cast(uint32_t, most) & kExponent;
      bits = (bits < kLeast ? kLeast : bits < kMost ? bits : kMost) + kStep;
      const float larger = __builtin_bit_cast(float, bits);
      O.x *= largest * inverse(larger);
      largest = larger;
      unit = larger * (kFactorUnit<E> / (kUnit * Widened<E, 8>::kFactor));
    }
    return kUnit * inverse(largest);
  }
};
template <class T, class E, int R, int D>
XF_INLINE void fill(ByteSums<T, E, R, D>& t, float value) {
  fill(t.O, value);
}
template <class T, class E, int R, int D>
XF_INLINE void operator*=(ByteSums<T, E, R, D>& t, const ColVec<R>& s) {
  t.O *= s;
}
// A NaN of e4m3 has made an infinity, which no numbers make.
template <class T, class E, int R, int D>
XF_INLINE Tile<R, D>& settled(ByteSums<T, E, R, D>& t) {
  XF_UNROLL for (int i = 0; i < R * t.O.kColumns; i += 32) {  // else there would be two of O
    auto x = t.O.x.template select<32, 1>(i);
    if constexpr (std::is_same_v<E, e4m3>) x += x * 0.f;
    x *= t.unit;
  }
  return t.O;
}

// Returns P times scales in fp16, the even ones of each kDepth keys before the odd ones.
template <class T, class E, int R, int N, int D, class Block>
XF_INLINE RegisterLeft<f16, R, N> scaled_probs(ByteSums<T, E, R, D>& sums,
                                               const FloatProbs<T, R, N>& P, const Block& V) {
  using Sums = ByteSums<T, E, R, D>;
  simd<float, N> factors = Sums::kUnit;
  if constexpr (kScaled<Block>) {
    const simd<float, N> scales = read_values<N>(V.scales, 0);
    factors = scales * sums.fit(scales);
  }
  RegisterLeft<f16, R, N> x;
  XF_UNROLL for (int c = 0; c < N / kLanes; ++c) {
    const floats f = part<kLanes>(factors, c * kLanes);
    XF_UNROLL for (int r = 0; r < R; ++r) {
      floats p = part<kLanes>(P.x, (c * R + r) * kLanes) * f;
      XF_UNROLL for (int i = 0; i < 2; ++i) {
        const int to = c * kLanes % kDepth / 2 + i * kDepth / 2;
        const simd<float, kLanes / 2> some = p.template select<kLanes / 2, 2>(i);
        x.x.template select<kLanes / 2, 1>(x.offset(r, c * kLanes / kDepth * kDepth) + to) =
            esimd::convert<f16>(some);
      }
    }
  }
  return x;
}

// Adds the product of kDepth keys and a chunk of columns of V, which has bytes of 4 keys in a
// dword.
template <class T, class E, int R, int N, int D>
XF_INLINE void multiply_quads(ByteSums<T, E, R, D>& sums, int chunk,
                              simd<uint8_t, kDepth * kLanes> quads,
                              const RegisterLeft<f16, R, N>& P, int step) {
  constexpr int kHalf = kDepth * kLanes / 2;
  const Widened<E, kHalf / 2> v(quads.template bit_cast_view<uint32_t>());
  simd<f16, 2 * kHalf> pairs;
  pairs.template select<kHalf, 1>(0) = v.even;
  pairs.template select<kHalf, 1>(kHalf) = v.odd;
  XF_UNROLL for (int r = 0; r < R / 8; ++r) {
    multiply<f16>(sums.O.block(r, chunk), pairs, P.block(r, step), false);
  }
}

// O += P V for the rows of V up to V.count.
template <class T, class E, int R, int N, int D, class Block>
  requires(!Group::staged)
XF_INLINE void accumulate_rows(ByteSums<T, E, R, D>& sums, const FloatProbs<T, R, N>& P,
                               const Block& V) {
  using Values = Right<f16, N, D, Block>;
  constexpr int kSteps = Values::kRows / kDepth, kBlocks = Values::kColumns / kLanes;
  const auto scaled = scaled_probs(sums, P, V);
  BlockReader<typename Values::Messages, D, Block> reader(V, Values::across);
  reader.messages.begin(reader.row);
  in_steps<N / Values::kRows>([&](auto at_rows) __attribute__((always_inline)) {
    constexpr int j = at_rows;
    in_steps<Values::kOwn>([&](auto at) __attribute__((always_inline)) {
      constexpr int n = at;
      auto loaded =
          reader.messages.template load<Form::paired, j * Values::kOwn + n, n * Values::kColumns,
                                        j * Values::kRows>(reader.row);
      const simd<uint8_t, Values::kRows * Values::kColumns> bytes =
          loaded.template bit_cast_view<uint8_t>();
      XF_UNROLL for (int k = 0; k < kSteps; ++k) {
        XF_UNROLL for (int b = 0; b < kBlocks && n * kBlocks + b < sums.O.kChunks; ++b) {
          const auto quads = part<kDepth * kLanes>(bytes, (b * kSteps + k) * kDepth * kLanes);
          multiply_quads(sums, n * kBlocks + b, quads, scaled, j * kSteps + k);
        }
      }
    });
  });
}

}  // namespace xeflash::xe
