// Moves rows between memory and row tiles, and changes single rows on the way.
#pragma once

#include "xe/lanes.hpp"
#include "xe/row_tile.hpp"

namespace xeflash::xe {

template <class T, int N>
XF_INLINE simd<float, N> widen(simd<T, N> x) {
  return esimd::convert<float>(x);
}

// Elements that are in dwords, widened to fp32 from N dwords at a time.
template <class T, int Dwords>
struct DwordElements {
  static constexpr int kPerDword = 4 / sizeof(T);
  simd<uint32_t, Dwords> dwords;

  // Returns element i of each of N dwords, from dword `first` on.
  template <int N>
  XF_INLINE simd<float, N> get(int first, int i) const {
    auto some = part<N>(dwords, first);
    if constexpr (std::is_same_v<T, bf16>) {
      simd<uint32_t, N> bits = i == 0 ? simd<uint32_t, N>(some << 16) : some & 0xffff0000u;
      return bits.template bit_cast_view<float>();
    } else {
      simd<T, N> x = some.template bit_cast_view<T>().template select<N, kPerDword>(i);
      return widen(x);
    }
  }
};
template <class T, int Dwords>
  requires kQuantised<T>
struct DwordElements<T, Dwords> {
  static constexpr int kPerDword = 4;
  simd<f16, 2 * Dwords> pairs[2];

  XF_INLINE explicit DwordElements(const simd<uint32_t, Dwords>& dwords)
      : pairs{widen_pairs<f16, T>(dwords, 0), widen_pairs<f16, T>(dwords, 1)} {}
  template <int N>
  XF_INLINE simd<float, N> get(int first, int i) const {
    simd<f16, 2 * N> some = part<2 * N>(pairs[i / 2], 2 * first);
    const simd<f16, N> x = some.template select<N, 2>(i % 2);
    return widen(x);
  }
};

// ---- rows by block loads ------------------------------------------------------------------------

// The `wanted` of rows that all exist.
struct Always {
  constexpr operator bool() const { return true; }
};

template <class T, int N, class Wanted>
XF_INLINE simd<uint32_t, N> load_dwords(const void* p, Wanted wanted) {
  if constexpr (kAccess == Access::elements) {
    simd<uint32_t, N> x;
    constexpr int kAtOnce = N < kLanes ? N : kLanes;
    XF_UNROLL for (int i = 0; i < N; i += kAtOnce) {
      x.template select<kAtOnce, 1>(i) =
          gather_dwords<T>(p, Offsets<kAtOnce>(i * 4, 4), esimd::simd_mask<kAtOnce>(wanted));
    }
    return x;
  } else if constexpr (std::is_same_v<Wanted, Always>) {
    return load_whole<N>(reinterpret_cast<uint64_t>(p));
  } else {
    constexpr esimd::properties kAligned{esimd::alignment<4>};
    return esimd::block_load<uint32_t, N>(static_cast<const uint32_t*>(p),
                                          esimd::simd_mask<1>(wanted), simd<uint32_t, N>(0),
                                          kAligned);
  }
}

// Calls f(values, column) for all of a row, read by as few messages as sizes of powers of two
// allow. Values are 0 if the row is not `wanted`.
template <int D, int Column = 0, class T, class Wanted, class F>
XF_INLINE void each_in_memory(const T* row, Wanted wanted, F f) {
  constexpr int kLeft = (D - Column) * sizeof(T) / 4;
  constexpr int kDwords = kLeft >= 64   ? 64
                          : kLeft >= 32 ? 32
                          : kLeft >= 16 ? 16
                          : kLeft >= 8  ? 8
                          : kLeft >= 4  ? 4
                                        : 2;
  constexpr int kElements = kDwords * 4 / sizeof(T), kPart = kElements < kWide ? kElements : kWide;
  auto dwords = load_dwords<T, kDwords>(row + Column, wanted);
  const auto all = halved<T>(simd<Raw<T>, kElements>(dwords.template bit_cast_view<Raw<T>>()));
  XF_UNROLL for (int c = 0; c < kElements; c += kPart) {
    f(widen(part<kPart>(all, c)), Column + c);
  }
  if constexpr (Column + kElements < D) each_in_memory<D, Column + kElements>(row, wanted, f);
}

template <class M, int N>
XF_INLINE auto* row_at(const simd<uint64_t, N>& begin, int row) {
  const uint64_t address = begin[row];
  return reinterpret_cast<const ElementOf<M>*>(address);
}

template <class T, int R, int D>
XF_INLINE void load(RowMajor<R, D>& A, const Rows<const T>& m) {
  A.x = 0.f;
  each_row<R>([&](int r) {
    each_in_memory<D>(m.row(r), r < m.size(),
                      [&](auto v, int c) { A.template columns<v.length>(r, c) = v; });
  });
}

// ---- single rows --------------------------------------------------------------------------------

template <int D>
XF_INLINE float abs_max(const RowMajor<1, D>& x) {
  floats largest = 0.f;
  XF_UNROLL for (int c = 0; c < x.kChunks; ++c) {
    largest = max(largest, esimd::abs<float>(x.row(0, c)));
  }
  return fold_rows<1, kLanes>(largest, [](auto a, auto b) { return esimd::max<float>(a, b); })[0];
}

// O += w x for one row x in memory.
template <class T, int D>
XF_INLINE void add_scaled(RowMajor<1, D>& O, const T* row, float w) {
  each_in_memory<D>(row, true, [&](auto x, int c) { O.template columns<x.length>(0, c) += x * w; });
}

// Rotates the pairs of columns among the first `dims` of x, which was loaded from `row`: neighbours
// if interleaved, else a column of each half. A lane fetches its partner from memory.
template <class T, int D>
XF_INLINE void rotate(RowMajor<1, D>& x, const T* row, const T* cos, const T* sin, int dims,
                      bool interleaved) {
  const int half = dims / 2;
  each_in_row(x, 0, 0, [&](floats a, ints column) {
    const ints c = at_most(column, dims - 1);
    ints partner, pair;
    lane_mask second;
    if (interleaved) {
      second = (c & 1) != 0;
      partner = c ^ 1;
      pair = c >> 1;
    } else {
      second = c >= half;
      partner = c + half;
      partner.merge(c - half, second);
      pair = c;
      pair.merge(c - half, second);
    }
    const floats turned = value_at(row, partner) * value_at(sin, pair);
    const floats rotated = a * value_at(cos, pair) + select(second, turned, floats(-turned));
    return select(column < dims, rotated, a);
  });
}

}  // namespace xeflash::xe
