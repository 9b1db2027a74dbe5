// Logits on Xe: lane = column.
#pragma once

#include "products/logit_params.hpp"
#include "xe/lanes.hpp"
#include "xe/scores.hpp"
#include "xe/slope.hpp"

namespace xeflash::xe {

// The inputs of a thread's rows. They are loaded again for each step: registers cannot hold all of
// them.
template <class T, int R, int Bk>
struct KeptInputs {
  Rows<const T> x;

  XF_INLINE KeptInputs(void*, int64_t, const Rows<const T>& x) : x(x) {}
  template <class F>
  XF_INLINE void at(int k, F f) const {
    Left<T, R, Bk> tile;
    load(tile, x.columns(k, x.width));
    f(tile);
  }
};

template <int N, int Bk, class T, class F>
XF_INLINE void with_step(const Rows<const T>& m, int k, F f) {
  f(m.columns(k, m.width));
}

template <int R>
using RowInts = simd<int, R>;

// The low and high halves of the targets of R rows; rows that do not exist repeat the last target.
template <int R>
struct TargetBits {
  simd<uint32_t, R> low, high;

  XF_INLINE TargetBits(const TargetArg& target, int row, int rows) {
    const simd<int, R> at = esimd::min<int>(simd<int, R>(row, 1), rows - 1);
    const Offsets<R> bytes = Offsets<R>(at) * static_cast<uint32_t>(target.dwords * 4);
    low = esimd::gather<uint32_t, R>(target.data, bytes);
    if (target.dwords == 2) {
      high = esimd::gather<uint32_t, R>(target.data + 1, bytes);
    } else {
      high = simd<uint32_t, R>(simd<int, R>(low) >> 31);
    }
  }
  XF_INLINE esimd::simd_mask<R> are_in(int columns) const {
    return (high == 0) & (low < static_cast<uint32_t>(columns));
  }
};
template <int R>
XF_INLINE RowInts<R> targets_of(const TargetArg& target, int row, int rows, int columns) {
  RowInts<R> all = -1;
  if (!target.data) return all;
  const TargetBits<R> y(target, row, rows);
  all.merge(RowInts<R>(y.low), y.are_in(columns) & (simd<int, R>(row, 1) < rows));
  return all;
}
template <int R>
XF_INLINE ColVec<R> counts_of(const TargetArg& target, int row, int rows, int columns) {
  simd<float, R> all = 0.f;
  if (!target.data) return all;
  const TargetBits<R> y(target, row, rows);
  all = __builtin_nanf("");
  all.merge(simd<float, R>(1.f), y.are_in(columns));
  esimd::simd_mask<R> counts_not = simd<int, R>(row, 1) >= rows;
  if (target.ignores) {
    counts_not |= (y.low == static_cast<uint32_t>(target.ignored[0])) &
                  (y.high == static_cast<uint32_t>(target.ignored[1]));
  }
  all.merge(simd<float, R>(0.f), counts_not);
  return all;
}

template <int R>
XF_INLINE ColVec<R> load_line(const float* data, int count, float otherwise) {
  return load_values<R>(Rows<const float>{data, 1, count}, otherwise);
}

template <int R, int C>
XF_INLINE void pick(ColVec<R>& picked, const Tile<R, C>& S, const RowInts<R>& targets, int column) {
  XF_UNROLL for (int r = 0; r < R; ++r) {
    const int at = targets[r] - column;
    if (at < 0 || at >= C) continue;
    floats found = 0.f;
    XF_UNROLL for (int c = 0; c < S.kChunks; ++c) {
      found.merge(S.row(r, c), lane_index() == at - c * kLanes);
    }
    picked.x[r] = esimd::reduce<float>(found, std::plus<>());
  }
}

template <class T, int R, int C>
XF_INLINE void add_to_columns(Tile<R, C>& S, const T* bias, int column, int columns) {
  XF_UNROLL for (int c = 0; c < S.kChunks; ++c) {
    const floats added =
        value_at(bias, at_most(ints(lane_index() + (column + c * kLanes)), columns - 1));
    XF_UNROLL for (int r = 0; r < R; ++r) S.row(r, c) += added;
  }
}

template <int R, int C>
XF_INLINE ColVec<R> sum_of_differences(const Tile<R, C>& S, const ColVec<R>& m, int column,
                                       int columns) {
  ColSum<R> sums;
  XF_UNROLL for (int c = 0; c < S.kChunks; ++c) {
    const lane_mask there = lane_index() + (column + c * kLanes) < columns;
    XF_UNROLL for (int r = 0; r < R; ++r) {
      sums.row(r) += select(there, floats(S.row(r, c) - m[r]), floats(0.f));
    }
  }
  return sums;
}

template <int R, int C>
XF_INLINE void slopes_of(Tile<R, C>& S, const ColVec<R>& m, const ColVec<R>& log_l,
                         const ColVec<R>& of_p, const ColVec<R>& of_target, const ColVec<R>& of_all,
                         const RowInts<R>& targets, int first, int column, const LogitParams& p) {
  XF_UNROLL for (int c = 0; c < S.kChunks; ++c) {
    const ints k = lane_index() + (column + c * kLanes);
    XF_UNROLL for (int r = 0; r < R; ++r) {
      const floats z = S.row(r, c);
      const floats P = esimd::exp2(floats((z - m[r] - log_l[r]) * kLog2e));
      const int target = targets[r] - first;
      floats slope = P * of_p[r] - of_all[r];
      slope -= select(k == target, floats(of_target[r]), floats(0.f));
      if (p.softcap > 0.f) {
        const floats t = z * p.inverse_cap;
        slope *= 1.f - t * t;
      }
      S.row(r, c) = select(k < p.columns, floats(slope * p.scale), floats(0.f));
    }
  }
}

// Stores S transposed: rows of m are columns of S. Two 16-bit elements are written as one dword.
template <class T, int R, int C>
XF_INLINE void store_turned(const Rows<T>& m, const Tile<R, C>& S) {
  const Offsets<kLanes> rows =
      Offsets<kLanes>(lane_index()) * static_cast<uint32_t>(m.stride * sizeof(T));
  XF_UNROLL for (int c = 0; c < S.kChunks; ++c) {
    auto* first = reinterpret_cast<uint32_t*>(m.row(c * kLanes));
    if constexpr (sizeof(T) == 2) {
      XF_UNROLL for (int r = 0; r < R; r += 2) {
        simd<T, 2 * kLanes> pairs;
        pairs.template select<kLanes, 2>(0) = esimd::convert<T>(floats(S.row(r, c)));
        pairs.template select<kLanes, 2>(1) = esimd::convert<T>(floats(S.row(r + 1, c)));
        esimd::scatter<uint32_t, kLanes>(first, Offsets<kLanes>(rows + r * 2),
                                         pairs.template bit_cast_view<uint32_t>().read());
      }
    } else {
      XF_UNROLL for (int r = 0; r < R; ++r) {
        floats column = S.row(r, c);
        esimd::scatter<uint32_t, kLanes>(first, Offsets<kLanes>(rows + r * 4),
                                         column.template bit_cast_view<uint32_t>().read());
      }
    }
  }
}

template <class T>
XF_INLINE floats lanes_at(const T* data) {
  return value_at(data, lane_index());
}
template <class T>
XF_INLINE void store_lanes(T* out, floats x, int count) {
  using Bits = UintOfSize<sizeof(T)>;
  simd<T, kLanes> narrow = x;
  if constexpr (sizeof(T) == 2) narrow = esimd::convert<T>(x);
  esimd::scatter<Bits, kLanes>(reinterpret_cast<Bits*>(out),
                               Offsets<kLanes>(lane_index() * static_cast<int>(sizeof(T))),
                               narrow.template bit_cast_view<Bits>().read(), lane_index() < count);
}

template <int R>
XF_INLINE float sum_of(const ColVec<R>& x) {
  return esimd::reduce<float>(x.x, std::plus<>());
}

}  // namespace xeflash::xe
