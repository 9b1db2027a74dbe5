// Few rows against keys in int8, which go from memory into dpas as they are. Q is a number of 24
// bits per element, in three planes of bytes that are multiplied one after the other:
//   S = (65536 high + 256 middle + low) K^T unit
#pragma once

#include "xe/row_mma.hpp"

namespace xeflash::xe {

constexpr int kByteDepth = 32;  // of one dpas, in bytes

// Powers of two of rows, by which elements are divided to become numbers of 23 bits and a sign.
// Elements of bf16 below 2^-15 of their row's largest (fp16: 2^-12) are rounded. A row that has an
// infinity or NaN has the unit NaN.
template <int R>
struct PlaneUnits {
  simd<float, R> unit, inverse;

  XF_INLINE explicit PlaneUnits(simd<float, R> largest) {
    constexpr uint32_t kExponent = 0x7f800000, kOne = 127u << 23, kBits = 22u << 23;
    const simd<uint32_t, R> exponent = largest.template bit_cast_view<uint32_t>() & kExponent;
    const auto power = esimd::max<uint32_t>(exponent, simd<uint32_t, R>(kBits + (1u << 23)));
    simd<uint32_t, R> bits = power - kBits, inverse_bits = 2 * kOne + kBits - power;
    unit = bits.template bit_cast_view<float>();
    unit.merge(__builtin_nanf(""), exponent == kExponent);
    inverse = inverse_bits.template bit_cast_view<float>();
  }
};

// Returns the largest magnitude of each row; NaN is above all numbers.
template <class T, int R, int D>
XF_INLINE simd<float, R> largest_of_rows(const RegisterLeft<T, R, D>& A) {
  constexpr int kWidth = RegisterLeft<T, R, D>::kWidth, kPart = R * kWidth;
  simd<uint16_t, kPart> most = 0;
  XF_UNROLL for (int c = 0; c < A.kColumns / kWidth; ++c) {
    simd<T, kPart> x = part<kPart>(A.x, c * kPart);
    const simd<uint16_t, kPart> magnitude = x.template bit_cast_view<uint16_t>() & uint16_t{0x7fff};
    most = esimd::max<uint16_t>(most, magnitude);
  }
  simd<uint16_t, R> top =
      fold_rows<R, kWidth>(most, [](auto a, auto b) { return esimd::max<uint16_t>(a, b); });
  return esimd::convert<float>(simd<T, R>(top.template bit_cast_view<T>()));
}

// 8 rows of Q that are multiplied by kByteDepth columns of K are a block of each plane. Planes 0, 1
// and 2 have the high, middle and low bytes; those of plane 0 have signs.
constexpr int kPlanes = 3, kPlaneBlock = 8 * kByteDepth;
template <int Plane>
using PlaneByte = std::conditional_t<Plane == 0, int8_t, uint8_t>;

template <int R, int D>
struct PlanesLeft {
  static_assert(D % kByteDepth == 0 && D < 512, "a sum of two planes has 32 bits");
  static constexpr int kSteps = D / kByteDepth;
  static constexpr int kSharedBytes =
      Group::turns > 1 ? Group::sharing * (kPlanes * R * D + R * 4) : 0;
  simd<uint8_t, kPlanes * R * D> x;  // [plane][step][row][kByteDepth columns]
  ColVec<R> unit;

  template <int Plane>
  XF_INLINE simd<PlaneByte<Plane>, kPlaneBlock> block(int r, int step) const {
    simd<uint8_t, kPlaneBlock> bytes = part<kPlaneBlock>(x, offset(Plane, r * 8, step));
    return bytes.template bit_cast_view<PlaneByte<Plane>>();
  }
  static constexpr int offset(int plane, int row, int step) {
    return ((plane * kSteps + step) * R + row) * kByteDepth;
  }
};
template <class T, int R, int D>
XF_INLINE void make(PlanesLeft<R, D>& A, const Rows<const T>& m) {
  RegisterLeft<T, R, D> x;
  load(x, m);
  const PlaneUnits<R> units(largest_of_rows(x));
  A.unit.x = units.unit;
  constexpr int kWidth = RegisterLeft<T, R, D>::kWidth;
  XF_UNROLL for (int step = 0; step < A.kSteps; ++step) {
    XF_UNROLL for (int r = 0; r < R; ++r) {
      simd<float, kByteDepth> values;
      XF_UNROLL for (int c = 0; c < kByteDepth; c += kWidth) {
        const simd<T, kWidth> row = part<kWidth>(x.x, x.offset(r, step * kByteDepth + c));
        values.template select<kWidth, 1>(c) = esimd::convert<float>(row);
      }
      const float inverse = units.inverse[r];
      const simd<float, kByteDepth> whole =
          esimd::rnde<float>(simd<float, kByteDepth>(values * inverse));
      simd<int32_t, kByteDepth> numbers = esimd::convert<int32_t>(whole);
      XF_UNROLL for (int plane = 0; plane < kPlanes; ++plane) {
        A.x.template select<kByteDepth, 1>(A.offset(plane, r, step)) =
            numbers.template bit_cast_view<uint8_t>().template select<kByteDepth, 4>(2 - plane);
      }
    }
  }
}

// The planes in shared memory, which threads that take turns have in common. Without 2D block
// messages, blocks are transposed, as they are right operands then.
template <int R, int D>
struct SharedPlanes {
  static constexpr int kSteps = PlanesLeft<R, D>::kSteps, kTiles = R / 8;
  static constexpr int kBlock = kPlaneBlock / 4;  // dwords
  static constexpr int kUnits = kPlanes * kSteps * kTiles * kPlaneBlock, kBytes = kUnits + R * 4;
  static constexpr int kSharedBytes = Group::sharing * kBytes;
  ColVec<R> unit;

  static XF_INLINE uint32_t begin() { return static_cast<uint32_t>(Group::sharer() * kBytes); }
  static XF_INLINE SharedBlocks<kBlock> blocks() { return {begin()}; }
  static XF_INLINE SharedBlocks<R> units() { return {begin() + kUnits}; }
  static constexpr int index(int plane, int r, int step) {
    return (plane * kSteps + step) * kTiles + r;
  }
  template <int Plane>
  XF_INLINE simd<PlaneByte<Plane>, kPlaneBlock> block(int r, int step) const {
    auto dwords = blocks().load(index(Plane, r, step));
    return dwords.template bit_cast_view<PlaneByte<Plane>>();
  }
};
template <class T, int R, int D>
XF_INLINE void load(SharedPlanes<R, D>& A, const Rows<const T>& m) {
  if (Group::turn() == 0) {
    PlanesLeft<R, D> own;
    make(own, m);
    XF_UNROLL for (int i = 0; i < kPlanes * A.kSteps * A.kTiles; ++i) {
      simd<uint8_t, kPlaneBlock> bytes = part<kPlaneBlock>(own.x, i * kPlaneBlock);
      simd<uint32_t, kPlaneBlock / 4> dwords = bytes.template bit_cast_view<uint32_t>();
      if constexpr (Group::staged) dwords = dwords.template replicate_vs_w_hs<8, 1, 8, 8>(0);
      A.blocks().store(i, dwords);
    }
    A.units().store(0, simd<uint32_t, R>(own.unit.x.template bit_cast_view<uint32_t>()));
  }
  Group::meet_turns();
  auto bits = A.units().load(0);
  A.unit.x = bits.template bit_cast_view<float>();
}
// Of threads that take turns, one makes the planes, and the others take them over.
template <class T, int R, int D>
XF_INLINE void load(PlanesLeft<R, D>& A, const Rows<const T>& m) {
  if constexpr (Group::turns > 1) {
    SharedPlanes<R, D> shared;
    load(shared, m);
    A.unit = shared.unit;
    XF_UNROLL for (int i = 0; i < kPlanes * A.kSteps * (R / 8); ++i) {
      auto dwords = shared.blocks().load(i);
      A.x.template select<kPlaneBlock, 1>(i * kPlaneBlock) =
          dwords.template bit_cast_view<uint8_t>();
    }
  } else {
    make(A, m);
  }
}

// Returns the product of 8 rows and 8 kLanes columns from those of the planes: add(sum, plane)
// adds the product with one plane to a sum.
template <class F>
XF_INLINE simd<float, 8 * kLanes> join_planes(F add) {
  simd<int32_t, 8 * kLanes> high = 0, low = 0;
  add(high, std::integral_constant<int, 0>());
  high = high << 8;
  add(high, std::integral_constant<int, 1>());
  add(low, std::integral_constant<int, 2>());
  return simd<float, 8 * kLanes>(esimd::convert<float>(high)) * 256.f +
         simd<float, 8 * kLanes>(esimd::convert<float>(low));
}

// S = A K^T for the rows of K up to K.count.
template <template <int, int> class AnyPlanes, int R, int N, int D, class Block>
XF_INLINE void dot_rows(Tile<R, N>& S, const AnyPlanes<R, D>& A, const Block& K) {
  using Keys = RightT<int8_t, N, D, Block>;
  constexpr int kSteps = AnyPlanes<R, D>::kSteps;
  typename Keys::Reader reader(K, Keys::across);
  reader.messages.begin(reader.row);
  in_steps<Keys::kBlocks>([&](auto block) __attribute__((always_inline)) {
    constexpr int n = block;
    simd<int8_t, kByteDepth * kLanes> keys[kSteps];
    in_steps<kSteps>([&](auto at) __attribute__((always_inline)) {
      constexpr int step = at;
      auto dwords = reader.messages.template load<Form::transposed, step * Keys::kBlocks + n,
                                                  step * 8, n * kLanes>(reader.row);
      keys[step] = dwords.template bit_cast_view<int8_t>();
    });
    XF_UNROLL for (int r = 0; r < R / 8; ++r) {
      S.block(r, n) = join_planes([&](auto& sum, auto plane) __attribute__((always_inline)) {
        XF_UNROLL for (int step = 0; step < kSteps; ++step) {
          const auto q = A.template block<plane>(r, step);
          sum = esimd::xmx::dpas<8, 8, int32_t>(sum, keys[step], q);
        }
      });
    }
  });
  S *= A.unit;
  if constexpr (kScaled<Block>) scale_columns(S, K.scales);
}

}  // namespace xeflash::xe
