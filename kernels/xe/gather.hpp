// Elements of a score-shaped array for kLanes columns of a row.
#pragma once

#include "xe/rows.hpp"

namespace xeflash::xe {

template <int Bytes>
using UintOfSize =
    std::conditional_t<Bytes == 4, uint32_t, std::conditional_t<Bytes == 2, uint16_t, uint8_t>>;

template <class S>
XF_INLINE S to_floats(ints v) {
  return esimd::convert<float>(v);
}

XF_INLINE ints at_most(ints i, int last) { return esimd::min<int>(i, ints(last)); }

template <class S, class T>
XF_INLINE S gather(const T* data, int64_t row, int q, int64_t col, ints k) {
  using Bits = UintOfSize<sizeof(T)>;
  const auto* first = reinterpret_cast<const Bits*>(data + q * row);
  const Offsets<kLanes> bytes = Offsets<kLanes>(k) * static_cast<uint64_t>(col * sizeof(T));
  simd<Bits, kLanes> bits = esimd::gather<Bits, kLanes>(first, bytes);
  return esimd::convert<float>(simd<T, kLanes>(bits.template bit_cast_view<T>()));
}

}  // namespace xeflash::xe
