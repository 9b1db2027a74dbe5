// Elements of a score-shaped array for 16 columns of a row.
#pragma once

#include "xe/vec.hpp"

namespace xeflash::xe {

template <int Bytes>
using UintOfSize =
    std::conditional_t<Bytes == 4, uint32_t, std::conditional_t<Bytes == 2, uint16_t, uint8_t>>;

template <class S>
XF_INLINE S to_floats(i32x16 v) {
  return esimd::convert<float>(v);
}

XF_INLINE int at_most(int i, int last) { return i < last ? i : last; }
XF_INLINE i32x16 at_most(i32x16 i, int last) { return esimd::min<int>(i, i32x16(last)); }

template <class S, class T>
XF_INLINE S gather(const T* data, int64_t row, int q, int64_t col, i32x16 k) {
  using Bits = UintOfSize<sizeof(T)>;
  using Offsets = simd<uint64_t, kLanes>;
  const auto* first = reinterpret_cast<const Bits*>(data + q * row);
  const Offsets bytes = Offsets(k) * static_cast<uint64_t>(col * sizeof(T));
  simd<Bits, kLanes> bits = esimd::gather<Bits, kLanes>(first, bytes);
  return esimd::convert<float>(simd<T, kLanes>(bits.template bit_cast_view<T>()));
}

}  // namespace xeflash::xe
