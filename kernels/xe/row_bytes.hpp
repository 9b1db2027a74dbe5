// Few rows against keys in 8 bits, which the matrix unit multiplies by Q in blocks of 32 bytes a
// row:
//   int8   K goes from memory into dpas as it is. Q is a number of 24 bits per element, in three
//          planes of bytes: S = (65536 high + 256 middle + low) K^T unit
//   fp8    K is widened to fp16, the even columns and the odd ones. So is Q: S = Q K^T unit
#pragma once

#include "xe/row_mma.hpp"

namespace xeflash::xe {

constexpr int kByteDepth = 32;  // columns of K that are multiplied in a step

// Powers of two of rows, by which elements are divided to become less than 2^(Bits + 1), but not
// all less than 2^Bits. A row that has an infinity or NaN has the unit NaN.
template <int R, int Bits>
struct QueryUnits {
  simd<float, R> unit, inverse;

  XF_INLINE explicit QueryUnits(simd<float, R> largest) {
    constexpr uint32_t kExponent = 0x7f800000, kOne = 127u << 23, kBits = uint32_t{Bits} << 23;
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

// Q beside keys in elements E, in planes. Beside int8, plane 0 has the high bytes, which have the
// sign, and planes 1 and 2 the others; elements of bf16 below 2^-15 of their row's largest (fp16:
// 2^-12) are rounded. Beside fp8, planes have the even and the odd columns in fp16; elements below
// 2^-31 of the largest (fp16: 2^-28) are rounded.
template <class E>
constexpr int kPlanes = std::is_same_v<E, int8_t> ? 3 : 2;
template <class E, int Plane>
using PlaneElement = std::conditional_t<!std::is_same_v<E, int8_t>, f16,
                                        std::conditional_t<Plane == 0, int8_t, uint8_t>>;
constexpr int kPlaneBlock = 8 * kByteDepth / 4;  // dwords of 8 rows of a step

template <class E, int R, int D>
struct PlanesLeft {
  static_assert(D % kByteDepth == 0 && D < 512, "a sum of two planes of bytes has 32 bits");
  static constexpr int kSteps = D / kByteDepth, kTiles = R / 8;
  static constexpr int kBlocks = kPlanes<E> * kSteps * kTiles;
  static constexpr int kBytes = kBlocks * kPlaneBlock * 4 + R * 4;  // with units
  static constexpr int kSharedBytes = Group::turns > 1 ? Group::sharing * kBytes : 0;
  simd<uint32_t, kBlocks * kPlaneBlock> x;  // [plane][step][row][8 dwords]
  ColVec<R> unit;

  static constexpr int index(int plane, int r, int step) {
    return (plane * kSteps + step) * kTiles + r;
  }
  template <int Plane>
  XF_INLINE auto block(int r, int step) const {
    simd<uint32_t, kPlaneBlock> dwords = part<kPlaneBlock>(x, index(Plane, r, step) * kPlaneBlock);
    using P = PlaneElement<E, Plane>;
    return simd<P, kPlaneBlock * 4 / sizeof(P)>(dwords.template bit_cast_view<P>());
  }
  // Puts one step of a row of Q.
  XF_INLINE void put(int row, int step, simd<float, kByteDepth> q) {
    const auto put_plane = [&](int plane, simd<uint32_t, 8> dwords) {
      x.template select<8, 1>(((plane * kSteps + step) * R + row) * 8) = dwords;
    };
    if constexpr (std::is_same_v<E, int8_t>) {
      simd<int32_t, kByteDepth> numbers =
          esimd::convert<int32_t>(simd<float, kByteDepth>(esimd::rnde<float>(q)));
      XF_UNROLL for (int plane = 0; plane < 3; ++plane) {
        simd<uint8_t, kByteDepth> bytes =
            numbers.template bit_cast_view<uint8_t>().template select<kByteDepth, 4>(2 - plane);
        put_plane(plane, bytes.template bit_cast_view<uint32_t>());
      }
    } else {
      simd<f16, kByteDepth> halves = esimd::convert<f16>(q);
      XF_UNROLL for (int plane = 0; plane < 2; ++plane) {
        simd<f16, kByteDepth / 2> some = halves.template select<kByteDepth / 2, 2>(plane);
        put_plane(plane, some.template bit_cast_view<uint32_t>());
      }
    }
  }
};
template <class T, class E, int R, int D>
XF_INLINE void make(PlanesLeft<E, R, D>& A, const Rows<const T>& m) {
  RegisterLeft<T, R, D> x;
  load(x, m);
  QueryUnits<R, std::is_same_v<E, int8_t> ? 22 : 15> units(largest_of_rows(x));
  A.unit.x = units.unit * (1.f / Widened<E, 8>::kFactor);
  constexpr int kWidth = RegisterLeft<T, R, D>::kWidth;
  XF_UNROLL for (int r = 0; r < R; ++r) {
    const float inverse = units.inverse[r];
    XF_UNROLL for (int step = 0; step < A.kSteps; ++step) {
      simd<float, kByteDepth> q;
      XF_UNROLL for (int c = 0; c < kByteDepth; c += kWidth) {
        const simd<T, kWidth> row = part<kWidth>(x.x, x.offset(r, step * kByteDepth + c));
        q.template select<kWidth, 1>(c) = esimd::convert<float>(row);
      }
      A.put(r, step, q * inverse);
    }
  }
}

// The planes in shared memory, which threads that take turns have in common. Without 2D block
// messages, blocks are transposed, as they are right operands then.
template <class E, int R, int D>
struct SharedPlanes {
  using Own = PlanesLeft<E, R, D>;
  static constexpr int kSteps = Own::kSteps, kTiles = Own::kTiles;
  static constexpr int kBytes = Own::kBytes, kUnits = kBytes - R * 4;
  static constexpr int kSharedBytes = Group::sharing * kBytes;
  ColVec<R> unit;

  static XF_INLINE uint32_t begin() { return static_cast<uint32_t>(Group::sharer() * kBytes); }
  static XF_INLINE SharedBlocks<kPlaneBlock> blocks() { return {begin()}; }
  static XF_INLINE SharedBlocks<R> units() { return {begin() + kUnits}; }
  template <int Plane>
  XF_INLINE auto block(int r, int step) const {
    auto dwords = blocks().load(Own::index(Plane, r, step));
    using P = PlaneElement<E, Plane>;
    return simd<P, kPlaneBlock * 4 / sizeof(P)>(dwords.template bit_cast_view<P>());
  }
};
template <class T, class E, int R, int D>
XF_INLINE void load(SharedPlanes<E, R, D>& A, const Rows<const T>& m) {
  if (Group::turn() == 0) {
    PlanesLeft<E, R, D> own;
    make(own, m);
    XF_UNROLL for (int i = 0; i < own.kBlocks; ++i) {
      simd<uint32_t, kPlaneBlock> dwords = part<kPlaneBlock>(own.x, i * kPlaneBlock);
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
template <class T, class E, int R, int D>
XF_INLINE void load(PlanesLeft<E, R, D>& A, const Rows<const T>& m) {
  if constexpr (Group::turns > 1) {
    SharedPlanes<E, R, D> shared;
    load(shared, m);
    A.unit = shared.unit;
    XF_UNROLL for (int i = 0; i < A.kBlocks; ++i) {
      A.x.template select<kPlaneBlock, 1>(i * kPlaneBlock) = shared.blocks().load(i);
    }
  } else {
    make(A, m);
  }
}

// Returns the product, in units, of the 8 rows r of Q and the keys of a block, whose bytes are in
// 8 dwords a step. Q is the left operand where 2D block messages transpose K.
template <class E, class Planes, int N, int Steps>
XF_INLINE simd<float, 8 * kLanes> multiply_bytes(const Planes& A, int r,
                                                 const simd<uint32_t, N> (&keys)[Steps]) {
  const auto multiply_add = [](auto& sum, auto q, auto k) __attribute__((always_inline)) {
    using Sum = typename std::remove_reference_t<decltype(sum)>::element_type;
    if constexpr (Group::staged)
      sum = esimd::xmx::dpas<8, 8, Sum>(sum, q, k);
    else
      sum = esimd::xmx::dpas<8, 8, Sum>(sum, k, q);
  };
  if constexpr (std::is_same_v<E, int8_t>) {
    const auto add_plane = [&](auto& sum, auto plane) __attribute__((always_inline)) {
      XF_UNROLL for (int step = 0; step < Steps; ++step) {
        simd<uint32_t, N> dwords = keys[step];
        const simd<int8_t, 4 * N> k = dwords.template bit_cast_view<int8_t>();
        multiply_add(sum, A.template block<plane>(r, step), k);
      }
    };
    simd<int32_t, 8 * kLanes> high = 0, low = 0;
    add_plane(high, std::integral_constant<int, 0>());
    high = high << 8;
    add_plane(high, std::integral_constant<int, 1>());
    add_plane(low, std::integral_constant<int, 2>());
    return simd<float, 8 * kLanes>(esimd::convert<float>(high)) * 256.f +
           simd<float, 8 * kLanes>(esimd::convert<float>(low));
  } else {
    simd<float, 8 * kLanes> sum = 0.f;
    XF_UNROLL for (int step = 0; step < Steps; ++step) {
      const Widened<E, N> k(keys[step]);
      multiply_add(sum, A.template block<0>(r, step), k.even);
      multiply_add(sum, A.template block<1>(r, step), k.odd);
    }
    return sum;
  }
}
// A NaN of e4m3 has made an infinity of its scores, which no numbers make: they become NaN.
template <class E, int R, int N, class Block>
XF_INLINE void finish_scores(Tile<R, N>& S, const Block& K) {
  if constexpr (std::is_same_v<E, e4m3>) S.x += S.x * 0.f;
  if constexpr (kScaled<Block>) scale_columns(S, K.scales);
}

// S = A K^T for the rows of K up to K.count.
template <template <class, int, int> class AnyPlanes, class E, int R, int N, int D, class Block>
  requires(!Group::staged && kQuantised<E>)
XF_INLINE void dot_rows(Tile<R, N>& S, const AnyPlanes<E, R, D>& A, const Block& K) {
  using Keys = RightT<uint8_t, N, D, Block>;
  constexpr int kSteps = D / kByteDepth;
  typename Keys::Reader reader(K, Keys::across);
  reader.messages.begin(reader.row);
  in_steps<Keys::kBlocks>([&](auto block) __attribute__((always_inline)) {
    constexpr int n = block;
    simd<uint32_t, 8 * kLanes> keys[kSteps];
    in_steps<kSteps>([&](auto at) __attribute__((always_inline)) {
      constexpr int step = at;
      keys[step] = reader.messages.template load<Form::transposed, step * Keys::kBlocks + n,
                                                 step * 8, n * kLanes>(reader.row);
    });
    XF_UNROLL for (int r = 0; r < R / 8; ++r) S.block(r, n) = multiply_bytes<E>(A, r, keys);
  });
  S *= A.unit;
  finish_scores<E>(S, K);
}

}  // namespace xeflash::xe
