// Stores tiles; loads and stores values per row or per column.
#pragma once

#include "xe/left.hpp"

namespace xeflash::xe {

// Stores all columns of every row by few messages.
template <int R, int D, class Rows>
XF_INLINE void store_whole_rows(const Rows& m, const Tile<R, D>& O) {
  using T = std::remove_pointer_t<decltype(m.data)>;
  const auto place = places<R>(m, 0);
  XF_UNROLL for (int r = 0; r < R; ++r) {
    simd<T, Tile<R, D>::kColumns> row;
    XF_UNROLL for (int c = 0; c < O.kChunks; ++c) {
      row.template select<kLanes, 1>(c * kLanes) = esimd::convert<T>(floats(O.row(r, c)));
    }
    const simd<uint32_t, row.length * sizeof(T) / 4> dwords =
        row.template bit_cast_view<uint32_t>();
    store_dwords<D * sizeof(T) / 4>(at_place(m.data, place[r]), dwords, r < m.size());
  }
}

template <int R, int D, class Rows>
XF_INLINE void store(const Rows& m, const Tile<R, D>& O) {
  using T = std::remove_pointer_t<decltype(m.data)>;
  constexpr bool kRagged = std::is_same_v<Rows, RaggedRows<T>>;
  if constexpr (kAccess == Access::dwords && D % 8 == 0 && !kRagged) {
    if (m.width >= D) return store_whole_rows(m, O);
  }
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  simd<T, R * Tile<R, D>::kColumns> values;
  if constexpr (sizeof(T) == 2)
    values = esimd::convert<T>(O.x);
  else
    values = O.x;
  auto bits = values.template bit_cast_view<Bits>();  // as bits: float stores convert them (2026.2)
  if constexpr (kReadsBlocks<Rows>) {
    BlockMessage<Bits, kLanes, 8> message(surface<D>(m));
    XF_UNROLL for (int c = 0; c < O.kChunks; ++c) {
      message.move_x(c * kLanes);
      XF_UNROLL for (int r = 0; r < R; r += 8) {
        message.move_y(r);
        message.store(bits.template select<8 * kLanes, 1>((c * R + r) * kLanes));
      }
    }
  } else {
    const int columns = at_most(m.width, D);
    const auto place = places<R>(m, 0);
    XF_UNROLL for (int r = 0; r < R; ++r) {
      auto* first = reinterpret_cast<Bits*>(at_place(m.data, place[r]));
      XF_UNROLL for (int c = 0; c < O.kChunks; ++c) {
        const ints column = lane_index() + c * kLanes;
        const simd<Bits, kLanes> x = bits.template select<kLanes, 1>((c * R + r) * kLanes);
        esimd::scatter<Bits, kLanes>(first, simd<uint32_t, kLanes>(column * int(sizeof(T))), x,
                                     (column < columns) & (r < m.size()));
      }
    }
  }
}

// Adds to a matrix of floats in memory: there = O + keep * there. Where keep is 0, what is there
// does not count, as it may be NaN.
template <int R, int D, class Rows>
XF_INLINE void add(const Rows& m, const Tile<R, D>& O, const ColVec<R>& keep) {
  const auto sum = [&](floats there, int r, int c) {
    const float kept = keep[r];
    return floats(floats(O.row(r, c)) + select(floats(kept) == 0.f, floats(0.f), there * kept));
  };
  if constexpr (kReadsBlocks<Rows>) {
    BlockMessage<float, kLanes, 8> message(surface<D>(m));
    XF_UNROLL for (int c = 0; c < O.kChunks; ++c) {
      message.move_x(c * kLanes);
      XF_UNROLL for (int first = 0; first < R; first += 8) {
        message.move_y(first);
        simd<float, 8 * kLanes> some = message.load();
        XF_UNROLL for (int r = 0; r < 8; ++r) {
          auto row = some.template select<kLanes, 1>(r * kLanes);
          row = sum(row, first + r, c);
        }
        message.store(some);
      }
    }
  } else {
    const int columns = at_most(m.width, D);
    const auto place = places<R>(m, 0);
    XF_UNROLL for (int r = 0; r < R; ++r) {
      float* row = at_place(m.data, place[r]);
      XF_UNROLL for (int c = 0; c < O.kChunks; ++c) {
        const ints column = lane_index() + c * kLanes;
        const Offsets<kLanes> bytes(column * 4);
        const lane_mask there = (column < columns) & (r < m.size());
        const floats before = esimd::gather<float, kLanes>(row, bytes, there, floats(0.f));
        esimd::scatter<float, kLanes>(row, bytes, sum(before, r, c), there);
      }
    }
  }
}

// Stores one value per row.
template <int R, class Rows>
XF_INLINE void store(const Rows& m, const ColVec<R>& v) {
  esimd::scatter<float, R>(m.data, places<R>(m, 0), v.x, simd<int32_t, R>(0, 1) < m.size());
}
template <int R, class Rows>
XF_INLINE ColVec<R> load_values(const Rows& m, float otherwise) {  // for rows that do not exist
  return simd<float, R>(esimd::gather<float, R>(
      m.data, places<R>(m, 0), simd<int32_t, R>(0, 1) < m.size(), simd<float, R>(otherwise)));
}
template <int C>
XF_INLINE Across<C> load_across(const Rows<const float>& m, float otherwise) {
  Across<C> v;
  XF_UNROLL for (int c = 0; c < v.kColumns; c += kLanes) {
    const Offsets<kLanes> bytes = Offsets<kLanes>(lane_index() + c) * 4;
    v.x.template select<kLanes, 1>(c) = esimd::gather<float, kLanes>(
        m.row(0), bytes, lane_index() + c < m.size(), floats(otherwise));
  }
  return v;
}
template <int C, class Rows>
XF_INLINE void store(const Rows& m, const Across<C>& v) {
  XF_UNROLL for (int c = 0; c < v.kColumns; c += kLanes) {
    const Offsets<kLanes> bytes = Offsets<kLanes>(lane_index() + c) * 4;
    esimd::scatter<float, kLanes>(m.row(0), bytes, part<kLanes>(v.x, c),
                                  lane_index() + c < m.size());
  }
}
// Does load_across for blocks of one line, one after the other. With 2D block messages the message
// is made only once.
template <int C>
struct AcrossRows {
  Rows<const float> rows;

  XF_INLINE explicit AcrossRows(const Line<const float>& line) : rows(line.rows()) {}
  XF_INLINE Across<C> at(int first, float otherwise) const {
    return load_across<C>(rows.from(first), otherwise);
  }
};
template <int C>
  requires(kAccess == Access::block2d)
struct AcrossRows<C> {
  static constexpr int kWidth = C < kLanes ? C : kLanes;
  BlockMessage<float, kWidth, 1> message;
  int begin, count;

  XF_INLINE explicit AcrossRows(const Line<const float>& line)
      : message(surface(line)), begin(static_cast<int>(line.first)), count(line.count) {}
  XF_INLINE Across<C> at(int first, float otherwise) {
    Across<C> v;
    XF_UNROLL for (int c = 0; c < v.kColumns; c += kWidth) {
      message.move_x(begin + first + c);
      const simd<float, kWidth> loaded = message.load();
      v.x.template select<kWidth, 1>(c) =
          select(lane_index() < count - (first + c), loaded, floats(otherwise));
    }
    return v;
  }
};
template <int R, class Rows>
XF_INLINE ColVec<R> load_values(const Rows& m) {
  return simd<float, R>(esimd::gather<float, R>(m.data, places<R>(m, 0)));
}

}  // namespace xeflash::xe
