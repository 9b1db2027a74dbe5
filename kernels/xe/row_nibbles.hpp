// Few rows on V in 4 bits, and rows that are brought into 4 bits.
//   Multiples of 8 rows go through dpas. P is multiplied by the scales of each unit. A word has 4
//   columns of one key; the words of two keys are interleaved, by a 2D block message or in
//   registers, so that a shift and a logical operation make pairs of 16 + q + 8 of 16 columns.
//   Any other number of rows goes through the vector unit, in fp32.
#pragma once

#include "xe/right_nibbles.hpp"
#include "xe/row_mma.hpp"
#include "xe/row_shared.hpp"

namespace xeflash::xe {

// sums += P V for the rows of V up to V.count.
template <class T, int R, int N, int D, class Block>
  requires(!Group::staged)
XF_INLINE void accumulate_rows(NibbleSums<R, D>& sums, const FloatProbs<T, R, N>& P,
                               const Block& V) {
  mma_AB(sums, P, Right<T, N, D, Block>(V));
}
template <class T, int R, int N, int D, class Block>
  requires Group::staged
XF_INLINE void accumulate_rows(NibbleSums<R, D>& sums, const FloatProbs<T, R, N>& P,
                               const Block& V) {
  RegisterLeft<T, R, N> weights[NibbleSums<R, D>::kUnits];
  XF_UNROLL for (int u = 0; u < sums.kUnits; ++u) {
    const simd<float, N> scales = read_unit_scales<N>(V.scales, 0, u);
    weights[u] = weighted(P, 0, simd<float, N>(scales * kFactorUnit<nibbles>));
    add_surplus(sums, weights[u], u);
  }
  const auto begin = addresses<N>(V.rows, 0, 0);
  XF_UNROLL for (int key = 0; key < N; key += kDepth) {
    const auto add_part = [&]<int Dwords>(simd<uint32_t, Dwords>(&rows)[kDepth], int first) {
      XF_UNROLL for (int c = 0; c < 2 * Dwords; c += kLanes) {
        simd<uint16_t, kDepth * kLanes> pairs;
        XF_UNROLL for (int k = 0; k < kDepth; ++k) {
          const simd<uint16_t, 2 * Dwords> row = rows[k].template bit_cast_view<uint16_t>();
          pairs.template select<kLanes, 2>(k / 2 * 2 * kLanes + k % 2) = part<kLanes>(row, c);
        }
        const simd<uint32_t, 8 * kLanes> words = pairs.template bit_cast_view<uint32_t>();
        const int u = (first + c) / kUnitWords, word = (first + c) % kUnitWords;
        XF_UNROLL for (int m = 0; m < 4; ++m) {
          const auto numbers = nibbles_plus_16<T>(words, m);
          const int chunk = (u * kUnitColumns + m * kUnitWords + word) / kLanes;
          XF_UNROLL for (int r = 0; r < R / 8; ++r) {
            multiply<T>(sums.O.block(r, chunk), numbers, weights[u].block(r, key / kDepth), false);
          }
        }
      }
    };
    each_part_of_rows<uint16_t, uint16_t, D / 4>(part<kDepth>(begin, key), add_part);
  }
}

// O += P V for the rows of V up to V.count, by the vector unit.
template <int R, int N, int D, class Block>
  requires kNibbles<ElementOf<Block>>
XF_INLINE void accumulate_rows(RowMajor<R, D>& O, const RowMajor<R, N>& P, const Block& V) {
  const auto begin = addresses<N>(V.rows, 0, 0);
  XF_UNROLL for (int u = 0; u < D / kUnitColumns; ++u) {
    RowMajor<R, N> weights = P;
    const simd<float, N> scales = read_unit_scales<N>(V.scales, 0, u) * kFactorUnit<nibbles>;
    XF_UNROLL for (int r = 0; r < R; ++r) weights.template columns<N>(r, 0) *= scales;
    XF_UNROLL for (int key = 0; key < N; ++key) {
      const auto* row = row_at<decltype(V.rows)>(begin, key) + u * 2 * kUnitWords;
      auto dwords = load_dwords<nibbles, kUnitWords / 2>(row, Always());
      simd<uint16_t, kUnitWords> words = dwords.template bit_cast_view<uint16_t>();
      words ^= uint16_t{0x8888};  // q + 8 becomes q in 4 bits
      XF_UNROLL for (int m = 0; m < 4; ++m) {
        simd<uint16_t, kUnitWords> high = words << (12 - 4 * m);
        const simd<int16_t, kUnitWords> q = high.template bit_cast_view<int16_t>() >> 12;
        accumulate(O, weights, key, simd<float, kUnitWords>(esimd::convert<float>(q)),
                   u * kUnitColumns + m * kUnitWords);
      }
    }
  }
}

// Writes a row in units, and a scale for each.
template <int D>
XF_INLINE void store_nibbles(nibbles* row, f16* scales, const RowMajor<1, D>& x) {
  constexpr float kMost = 65504.f;  // of fp16
  using Unit = simd<float, kUnitWords>;
  const auto fold = [](Unit v, auto op) { return fold_rows<1, kUnitWords>(v, op)[0]; };
  const auto larger = [](auto a, auto b) { return esimd::max<float>(a, b); };
  XF_UNROLL for (int u = 0; u < D / kUnitColumns; ++u) {
    const auto columns = [&](int m) {
      return Unit(x.template columns<kUnitWords>(0, u * kUnitColumns + m * kUnitWords));
    };
    Unit most = columns(0), least = -most, nothing = most * 0.f;
    XF_UNROLL for (int m = 1; m < 4; ++m) {
      most = esimd::max<float>(most, columns(m));
      least = esimd::max<float>(least, Unit(-columns(m)));
      nothing += columns(m) * 0.f;  // NaN if a value is not finite
    }
    const float top = fold(most, larger), bottom = fold(least, larger);
    const float exact = (top >= bottom ? top : -bottom) * -0.125f;
    const float inside = exact > kMost ? kMost : exact < -kMost ? -kMost : exact;
    const f16 scale =
        static_cast<f16>(inside + fold(nothing, [](auto a, auto b) { return a + b; }));
    scales[u] = scale;
    const float s = static_cast<float>(scale), inverse_scale = s == 0.f ? 0.f : inverse(s);
    simd<uint16_t, kUnitWords> words = 0;
    XF_UNROLL for (int m = 0; m < 4; ++m) {
      const Unit v = columns(m);
      Unit q = v * inverse_scale;
      q += (v - q * s) * inverse_scale;  // so that ties are ties
      q = esimd::max<float>(esimd::min<float>(q, Unit(7.f)), Unit(-8.f)) + (12582912.f + 8.f);
      const simd<uint32_t, kUnitWords> bits = q.template bit_cast_view<uint32_t>() & 15u;
      words |= simd<uint16_t, kUnitWords>(esimd::convert<uint16_t>(bits)) << (4 * m);
    }
    auto bytes = words.template bit_cast_view<uint8_t>();
    XF_UNROLL for (int i = 0; i < 2 * kUnitWords; i += 16) {
      const simd<uint32_t, 16> at(u * 2 * kUnitWords + i, 1);
      esimd::scatter<uint8_t, 16>(reinterpret_cast<uint8_t*>(row), at,
                                  simd<uint8_t, 16>(bytes.template select<16, 1>(i)));
    }
  }
}

}  // namespace xeflash::xe
