// Logits on the CPU: lane = row.
#pragma once

#include "cpu/scores.hpp"
#include "cpu/slope.hpp"
#include "products/logit_params.hpp"

namespace xeflash::cpu {

// Calls f with Bk columns of N rows, from column k on: in place, or, if rows end before, as a copy
// padded with zeros.
template <int N, int Bk, class T, class F>
XF_INLINE void with_step(const Rows<const T>& m, int k, F f) {
  alignas(64) T filled[N][Bk];
  Rows<const T> rows = m.columns(k, m.width);
  const int there = m.width - k;
  if (there < Bk) {
    XF_NO_UNROLL for (int i = 0; i < N && i < m.size(); ++i) {
      __builtin_memcpy(filled[i], m.row(i) + k, there * sizeof(T));
      XF_NO_UNROLL for (int c = there; c < Bk; ++c) filled[i][c] = T{};
    }
    rows = {filled[0], Bk, m.size() < N ? m.size() : N};
  }
  f(rows);
}

// Does what load does, but in loops that are not unrolled: with so many inputs, unrolled loops take
// compilers minutes.
template <class T, int R, int C>
XF_INLINE void pack(Left<T, R, C>& A, const Rows<const T>& m) {
  using V = std::conditional_t<kPaired<T>, u32x16, f32x16>;
  constexpr int kColumns = kPaired<T> ? C / 2 : C;
  static_assert(kColumns % kLanes == 0);
  XF_NO_UNROLL for (int r = 0; r < R / kLanes; ++r) {
    XF_NO_UNROLL for (int c = 0; c < kColumns; c += kLanes) {
      V v[kLanes];
      XF_UNROLL for (int i = 0; i < kLanes; ++i) {
        const T* row = m.row_or_last(r * kLanes + i);
        if constexpr (kPaired<T>)
          v[i] = load_as<u32x16>(row + 2 * c);
        else
          v[i] = load_widened(row + c);
      }
      transpose(v);
      XF_UNROLL for (int i = 0; i < kLanes; ++i) A.at(c + i, r) = v[i];
    }
  }
}

// The inputs of a block of rows are packed once, into memory of the worker.
template <class T, int R, int Bk>
struct KeptInputs {
  Left<T, R, Bk>* tiles;

  XF_INLINE KeptInputs(void* memory, int64_t worker, const Rows<const T>& x)
      : tiles(static_cast<Left<T, R, Bk>*>(memory) + worker * ((x.width + Bk - 1) / Bk)) {
    for (int k = 0; k < x.width; k += Bk) {
      with_step<R, Bk>(x, k, [&](const Rows<const T>& inputs) { pack(tiles[k / Bk], inputs); });
    }
  }
  template <class F>
  XF_INLINE void at(int k, F f) const {
    f(tiles[k / Bk]);
  }
};

template <int R>
struct RowInts {
  i32x16 x[R / kLanes];
};

XF_INLINE int64_t target_at(const TargetArg& target, int row) {
  return target.dwords == 2 ? reinterpret_cast<const int64_t*>(target.data)[row]
                            : reinterpret_cast<const int32_t*>(target.data)[row];
}
// This goes through memory, as a vector that is assembled element by element takes compilers
// minutes.
template <int R>
XF_INLINE RowInts<R> targets_of(const TargetArg& target, int row, int rows, int columns) {
  alignas(64) int32_t found[R];
  XF_NO_UNROLL for (int r = 0; r < R; ++r) {
    const int64_t y = target.data && row + r < rows ? target_at(target, row + r) : -1;
    found[r] = y >= 0 && y < columns ? static_cast<int>(y) : -1;
  }
  RowInts<R> all;
  XF_UNROLL for (int r = 0; r < R / kLanes; ++r) all.x[r] = load_as<i32x16>(found + r * kLanes);
  return all;
}
template <int R>
XF_INLINE ColVec<R> from_memory(const float (&x)[R]) {
  ColVec<R> all;
  XF_UNROLL for (int r = 0; r < R / kLanes; ++r) all.x[r] = load_as<f32x16>(x + r * kLanes);
  return all;
}
template <int R>
XF_INLINE ColVec<R> load_line(const float* data, int count, float otherwise) {
  alignas(64) float x[R];
  XF_NO_UNROLL for (int r = 0; r < R; ++r) x[r] = r < count ? data[r] : otherwise;
  return from_memory(x);
}
template <int R>
XF_INLINE ColVec<R> counts_of(const TargetArg& target, int row, int rows, int columns) {
  alignas(64) float all[R] = {};
  const int64_t ignored = static_cast<int64_t>(static_cast<uint32_t>(target.ignored[0])) |
                          static_cast<int64_t>(target.ignored[1]) << 32;
  XF_NO_UNROLL for (int r = 0; r < R && row + r < rows && target.data; ++r) {
    const int64_t y = target_at(target, row + r);
    const bool counts_not = target.ignores && y == ignored;
    all[r] = counts_not ? 0.f : y >= 0 && y < columns ? 1.f : __builtin_nanf("");
  }
  return from_memory(all);
}

template <int R, int C>
XF_INLINE void pick(ColVec<R>& picked, const Tile<R, C>& S, const RowInts<R>& targets, int column) {
  alignas(64) float found[R];
  alignas(64) int32_t at[R];
  XF_UNROLL for (int r = 0; r < R / kLanes; ++r) {
    store_as(found + r * kLanes, picked.x[r]);
    store_as(at + r * kLanes, targets.x[r] - column);
  }
  XF_NO_UNROLL for (int r = 0; r < R; ++r) {
    if (at[r] < 0 || at[r] >= C) continue;
    found[r] = reinterpret_cast<const float*>(&S.at(at[r], r / kLanes))[r % kLanes];
  }
  picked = from_memory(found);
}

template <class T, int R, int C>
XF_INLINE void add_to_columns(Tile<R, C>& S, const T* bias, int column, int columns) {
  each(S, 0, column,
       [&](f32x16 s, i32x16, int k) { return s + to_float(bias[k < columns ? k : columns - 1]); });
}

template <int R, int C>
XF_INLINE ColVec<R> sum_of_differences(const Tile<R, C>& S, const ColVec<R>& m, int column,
                                       int columns) {
  ColVec<R> sums(0.f);
  for (int r = 0; r < R / kLanes; ++r) {
    for (int c = 0; c < S.cols && column + c < columns; ++c) sums.x[r] += S.at(c, r) - m.x[r];
  }
  return sums;
}

template <int R, int C>
XF_INLINE void slopes_of(Tile<R, C>& S, const ColVec<R>& m, const ColVec<R>& log_l,
                         const ColVec<R>& of_p, const ColVec<R>& of_target, const ColVec<R>& of_all,
                         const RowInts<R>& targets, int first, int column, const LogitParams& p) {
  S.each_vector(C, [&](f32x16& v, int c, int r) __attribute__((always_inline)) {
    const f32x16 P = exp2<6>((v - m.x[r] - log_l.x[r]) * kLog2e);
    f32x16 slope = fma(P, of_p.x[r], -of_all.x[r]);
    slope -= select(targets.x[r] == i32x16(first + column + c), of_target.x[r], f32x16(0.f));
    if (p.softcap > 0.f) {
      const f32x16 t = v * p.inverse_cap;
      slope *= 1.f - t * t;
    }
    v = column + c < p.columns ? slope * p.scale : f32x16(0.f);
  });
}

// Stores S transposed: rows of m are columns of S.
template <class T, int R, int C>
XF_INLINE void store_turned(const Rows<T>& m, const Tile<R, C>& S) {
  for (int c = 0; c < C; ++c) {
    for (int r = 0; r < R / kLanes; ++r) {
      store_narrowed(m.row(c) + r * kLanes, S.at(c, r));
    }
  }
}

template <class T>
XF_INLINE f32x16 lanes_at(const T* data) {
  return load_widened(data);
}
template <class T>
XF_INLINE void store_lanes(T* out, f32x16 x, int count) {
  store_some(out, x, count);
}

template <int R>
XF_INLINE float sum_of(const ColVec<R>& x) {
  f32x16 sum = x.x[0];
  for (int r = 1; r < R / kLanes; ++r) sum += x.x[r];
  return reduce_add(sum);
}

}  // namespace xeflash::cpu
