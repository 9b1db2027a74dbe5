// Rows of a matrix in memory, read and written by gathers and scatters: any address and stride.
#pragma once

#include "tile/rows.hpp"
#include "xe/quantised.hpp"

namespace xeflash::xe {

// True if 2D block messages read and write rows of this kind.
template <class Matrix>
constexpr bool kReadsBlocks = false;
template <class T>
constexpr bool kReadsBlocks<Rows<T>> = kAccess == Access::block2d;
// The type of a matrix's elements.
template <class M>
using ElementOf =
    std::remove_const_t<std::remove_pointer_t<decltype(elements(std::declval<M>()).data)>>;

// Offsets in bytes from a row nearby: within the rows of a tile they fit in 32 bits. A 64-bit
// addition is several instructions on some GPUs, and a 64-bit multiplication is many.
template <int N>
using Offsets = simd<uint32_t, N>;

// Gathers the dwords at `offsets` where `wanted`, and 0 elsewhere. With Access::elements, rows may
// begin at any multiple of an element T, so dwords are assembled from 16-bit halves, or from bytes
// if T is quantised.
template <class T, class Offset, int N>
XF_INLINE simd<uint32_t, N> gather_dwords(const void* base, simd<Offset, N> offsets,
                                          esimd::simd_mask<N> wanted) {
  if constexpr (kAccess == Access::elements) {
    using Bits = std::conditional_t<kQuantised<T>, uint8_t, uint16_t>;
    simd<uint32_t, N> x = 0;
    XF_UNROLL for (int i = 0; i < 4; i += sizeof(Bits)) {
      x |= simd<uint32_t, N>(esimd::gather<Bits, N>(static_cast<const Bits*>(base),
                                                    simd<Offset, N>(offsets + i), wanted,
                                                    simd<Bits, N>(0)))
           << 8 * i;
    }
    return x;
  } else {
    return esimd::gather<uint32_t, N>(static_cast<const uint32_t*>(base), offsets, wanted,
                                      simd<uint32_t, N>(0));
  }
}

template <class T>
XF_INLINE T* at_place(T* data, uint64_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<uint64_t>(data) + bytes);
}
// Returns the address of a row, which must exist. Rows are less than 2^27 bytes apart, as
// python/host/attention/access.cpp checks: the product of two numbers of 32 bits is 3 instructions,
// that of 64 bits 20.
template <class T>
XF_INLINE T* row_at(const Rows<T>& m, int row) {
  return at_place(m.data, uint64_t{static_cast<uint32_t>(m.first + row)} *
                              static_cast<uint32_t>(m.stride * sizeof(T)));
}

// Reads R rows x C dwords, from row `row` and dword `column` on: row by row, or, with EvenFirst,
// rows 0, 2, 4, ... and then 1, 3, 5, .... Rows and columns that do not exist read 0.
template <int R, int C, bool EvenFirst = false, class T>
XF_INLINE simd<uint32_t, R * C> read_rows(const Rows<const T>& m, int row, int column) {
  constexpr int kPerDword = 4 / sizeof(T), kRows = R * C < 32 ? R : 32 / C, kAtOnce = kRows * C;
  static_assert(!EvenFirst || R % (2 * kRows) == 0);
  const simd<int, kAtOnce> element(0, 1), c = element % C + column;
  const simd<int, kAtOnce> r = element / C * (EvenFirst ? 2 : 1);
  const auto bytes = static_cast<uint32_t>(m.stride * sizeof(T));
  const Offsets<kAtOnce> offsets = Offsets<kAtOnce>(r) * bytes + Offsets<kAtOnce>(c * 4);
  const auto inside = c * kPerDword < m.width;
  simd<uint32_t, R * C> x;
  XF_UNROLL for (int i = 0; i < R; i += kRows) {
    const int first = EvenFirst ? 2 * i % R + 2 * i / R : i;
    x.template select<kAtOnce, 1>(i * C) =
        gather_dwords<T>(m.row(row + first), offsets, (r < m.size() - (row + first)) & inside);
  }
  return x;
}

// Returns the offsets of R rows, in bytes from m.data.
template <int R, class T>
XF_INLINE simd<uint64_t, R> places(const Rows<T>& m, int row) {
  return simd<uint64_t, R>(simd<int, R>(0, 1) + (m.first + row)) *
         static_cast<uint64_t>(m.stride * sizeof(T));
}
template <int R, class T>
XF_INLINE simd<uint64_t, R> places(const PackedRows<T>& m, int row) {
  const simd<int, R> r = esimd::min<int>(simd<int, R>(0, 1) + (m.first + row), m.count - 1);
  const simd<int, R> query = m.packed.query(r), head = r - query * m.packed.heads;
  return simd<uint64_t, R>(query) * static_cast<uint64_t>(m.query_stride * sizeof(T)) +
         simd<uint64_t, R>(head) * static_cast<uint64_t>(m.head_stride * sizeof(T));
}
template <int R, class T>
XF_INLINE simd<uint64_t, R> places(const BeamRows<T>& m, int row) {
  const simd<int, R> r = esimd::min<int>(simd<int, R>(0, 1) + row, m.count - 1);
  const simd<int, R> sequence = esimd::gather<int, R>(m.table, Offsets<R>(r * 4));
  return simd<uint64_t, R>(sequence) * static_cast<uint64_t>(m.sequence_stride * sizeof(T)) +
         simd<uint64_t, R>(r) * static_cast<uint64_t>(m.stride * sizeof(T));
}
// Stores the first N dwords of x to an address that is any multiple of 4 bytes.
template <int N, int M>
XF_INLINE void store_dwords(void* to, simd<uint32_t, M> x, bool wanted, int first = 0) {
  constexpr int kDwords = N >= 64 ? 64 : N >= 32 ? 32 : N >= 16 ? 16 : N >= 8 ? 8 : 4;
  constexpr esimd::properties kAligned{esimd::alignment<4>};
  esimd::block_store<uint32_t, kDwords>(static_cast<uint32_t*>(to) + first, part<kDwords>(x, first),
                                        esimd::simd_mask<1>(wanted), kAligned);
  if constexpr (N > kDwords) store_dwords<N - kDwords>(to, x, wanted, first + kDwords);
}

// read_rows for rows that each have a place of their own: PackedRows and BeamRows.
template <int R, int C, bool EvenFirst = false, template <class> class M, class T>
XF_INLINE simd<uint32_t, R * C> read_rows(const M<const T>& m, int row, int column) {
  const simd<int, C> dword = simd<int, C>(0, 1) + column;
  const auto inside = dword * (4 / static_cast<int>(sizeof(T))) < m.width;
  const auto place = places<R>(m, row);
  simd<uint32_t, R * C> x;
  XF_UNROLL for (int r = 0; r < R; ++r) {
    const int from = EvenFirst ? 2 * r % R + 2 * r / R : r;
    x.template select<C, 1>(r * C) = gather_dwords<T>(
        at_place(m.data, place[from]), Offsets<C>(dword * 4), inside & (row + from < m.size()));
  }
  return x;
}
// Returns the addresses of dword `column` of R rows; rows that do not exist repeat the last one.
template <int R, bool EvenFirst = false, class T>
XF_INLINE simd<uint64_t, R> addresses(const Rows<const T>& m, int row, int column) {
  const int last = m.size() - 1, first = at_most(row, last);
  const simd<int, R> i(0, 1), r = EvenFirst ? simd<int, R>(i * 2 % R + i * 2 / R) : i;
  const Offsets<R> offsets =
      Offsets<R>(esimd::min<int>(r, last - first)) * static_cast<uint32_t>(m.stride * sizeof(T)) +
      static_cast<uint32_t>(column * 4);
  return simd<uint64_t, R>(offsets) + reinterpret_cast<uint64_t>(row_at(m, first));
}
template <int R, bool EvenFirst = false, class T>
XF_INLINE simd<uint64_t, R> addresses(const BeamRows<const T>& m, int row, int column) {
  simd<uint64_t, R> place = places<R>(m, row) + (reinterpret_cast<uint64_t>(m.data) + column * 4);
  if constexpr (!EvenFirst) {
    return place;
  } else {
    simd<uint64_t, R> in_order;
    in_order.template select<R / 2, 1>(0) = place.template select<R / 2, 2>(0);
    in_order.template select<R / 2, 1>(R / 2) = place.template select<R / 2, 2>(1);
    return in_order;
  }
}

template <int Dwords>
XF_INLINE simd<uint32_t, Dwords> load_whole(uint64_t address) {
  constexpr esimd::properties kAligned{esimd::alignment<4>};
  return esimd::block_load<uint32_t, Dwords>(reinterpret_cast<const uint32_t*>(address), kAligned);
}
// read_rows by one block load per row, which takes a single address. All C columns have to exist;
// rows that do not exist repeat the last one.
template <int R, int C, bool EvenFirst = false, class M>
XF_INLINE simd<uint32_t, R * C> read_whole_rows(const M& m, int row, int column) {
  const simd<uint64_t, R> place = addresses<R, EvenFirst>(m, row, column);
  simd<uint32_t, R * C> x;
  XF_UNROLL for (int k = 0; k < R; ++k) {
    const uint64_t address = place[k];
    x.template select<C, 1>(k * C) = load_whole<C>(address);
  }
  return x;
}

// The addresses of kLanes rows, lane = row, as offsets in bytes from a base address. They have 64
// bits where no address is near all rows.
template <class M>
struct LaneRows;
template <class T>
struct LaneRows<Rows<T>> {
  T* base;
  Offsets<kLanes> offsets;
  XF_INLINE LaneRows(const Rows<T>& m, int row)
      : base(row_at(m, row)),
        offsets(Offsets<kLanes>(lane_index()) * static_cast<uint32_t>(m.stride * sizeof(T))) {}
};
template <class T>
struct LaneRows<BeamRows<T>> {
  T* base;
  simd<uint64_t, kLanes> offsets;
  XF_INLINE LaneRows(const BeamRows<T>& m, int row)
      : base(m.data), offsets(places<kLanes>(m, row)) {}
};

// Reads 8 dwords of each of kLanes rows, from dword `column` on, which exists: [dword][row], lane =
// row. Other columns, and rows, that do not exist read 0; with kWhole all rows exist.
template <int D, bool kWhole = false, template <class> class M, class T>
XF_INLINE simd<uint32_t, 8 * kLanes> read_transposed(const M<const T>& m, int row, int column) {
  // D is a multiple of 8 elements.
  constexpr int kDwords = D * sizeof(T) / 4, kAtOnce = kDwords % 4 == 0 ? 4 : 2;
  const LaneRows<M<const T>> rows(m, row);
  const auto offsets = rows.offsets + column * 4;
  using Bytes = std::remove_const_t<decltype(rows.offsets)>;
  const lane_mask there = lane_index() < m.size() - row;
  simd<uint32_t, 8 * kLanes> x;
  XF_UNROLL for (int i = 0; i < 8; i += kAtOnce) {
    auto some = x.template select<kAtOnce * kLanes, 1>(i * kLanes);
    if (kDwords % 8 != 0 && column + i >= kDwords) {
      some = 0;
    } else if constexpr (kAccess == Access::elements) {
      XF_UNROLL for (int k = 0; k < kAtOnce; ++k) {
        some.template select<kLanes, 1>(k * kLanes) =
            gather_dwords<T>(rows.base, Bytes(offsets + (i + k) * 4), there);
      }
    } else if constexpr (kWhole) {
      some = esimd::gather<uint32_t, kAtOnce * kLanes, kAtOnce>(
          reinterpret_cast<const uint32_t*>(rows.base), Bytes(offsets + i * 4));
    } else {
      some = esimd::gather<uint32_t, kAtOnce * kLanes, kAtOnce>(
          reinterpret_cast<const uint32_t*>(rows.base), Bytes(offsets + i * 4), there,
          simd<uint32_t, kAtOnce * kLanes>(0));
    }
  }
  return x;
}

// Reads N rows of one value each, from `row` on; rows that do not exist read 0.
template <int N, class M>
XF_INLINE simd<float, N> read_values(const M& m, int row) {
  simd<float, N> x;
  XF_UNROLL for (int i = 0; i < N; i += kLanes) {
    const LaneRows<M> rows(m, row + i);
    x.template select<kLanes, 1>(i) = esimd::gather<float, kLanes>(
        rows.base, std::remove_const_t<decltype(rows.offsets)>(rows.offsets),
        lane_index() < m.size() - (row + i), floats(0.f));
  }
  return x;
}

}  // namespace xeflash::xe
