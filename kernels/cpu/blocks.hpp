// Blocks of a product on the CPU: lane = column, so that elements of A are broadcast from where
// they lie, and the rows of B are packed once for all rows of the block.
#pragma once

#include "cpu/mma.hpp"
#include "cpu/results.hpp"
#include "cpu/slope.hpp"

namespace xeflash::cpu {

template <class Config>
struct BlockSums {
  static constexpr int Br = Config::rows, Bn = Config::columns, kVecs = Bn / kLanes;
  alignas(64) f32x16 x[Br][kVecs];
  bool empty = true;
};

template <class Config>
XF_INLINE void allocate_block() {}

// Bk rows of B, packed one column of vectors after the other: fp32 numbers, or pairs of two rows.
template <class T, int Bk, int Bn>
struct PackedColumns {
  using Vec = std::conditional_t<kPaired<T>, u32x16, f32x16>;
  static constexpr int kSteps = kPaired<T> ? Bk / 2 : Bk;
  alignas(64) Vec x[Bn / kLanes][kSteps];

  // kLanes elements of a row from column c on; elements that do not exist are 0.
  static XF_INLINE const T* elements(T (&copy)[kLanes], const Rows<const T>& m, int row, int c) {
    const int count = row < m.size() ? m.width - c : 0;
    if (count >= kLanes) return m.row(row) + c;
    for (int i = 0; i < kLanes; ++i) copy[i] = T{};
    for (int i = 0; i < count; ++i) copy[i] = m.row(row)[c + i];
    return copy;
  }
  XF_INLINE PackedColumns(const Rows<const T>& m, int steps) {
    T one[kLanes], other[kLanes];
    for (int k = 0; k < steps; ++k) {
      for (int c = 0; c < Bn / kLanes; ++c) {
        if constexpr (kPaired<T>) {
          x[c][k] = interleave<kLanes>(elements(one, m, 2 * k, c * kLanes),
                                       elements(other, m, 2 * k + 1, c * kLanes));
        } else {
          x[c][k] = load_widened(elements(one, m, k, c * kLanes));
        }
      }
    }
  }
};

// Adds the product of Nt rows of A, from `row` on, and Ct vectors of columns of B, whose sums stay
// in registers.
template <int Nt, int Ct, class T, class Config, class Packed>
XF_INLINE void add_rows(BlockSums<Config>& C, const Rows<const Slope<T>>& A, const Packed& B,
                        int row, int c, int steps) {
  const Slope<T>* a[Nt];
  XF_UNROLL for (int n = 0; n < Nt; ++n) a[n] = A.row_or_last(row + n);
  f32x16 acc[Nt][Ct] = {};
  for (int k = 0; k < steps; ++k) {
    XF_UNROLL for (int n = 0; n < Nt; ++n) {
      const auto factor = element<T>(a[n], k);
      XF_UNROLL for (int t = 0; t < Ct; ++t) {
        acc[n][t] = multiply_add(acc[n][t], factor, B.x[c + t][k]);
      }
    }
  }
  XF_UNROLL for (int n = 0; n < Nt; ++n) {
    XF_UNROLL for (int t = 0; t < Ct; ++t) {
      f32x16& sum = C.x[row + n][c + t];
      sum = C.empty ? acc[n][t] : sum + acc[n][t];
    }
  }
}

template <class Config, class T>
XF_INLINE void add_block(BlockSums<Config>& C, const Rows<const Slope<T>>& A,
                         const Rows<const T>& B, int k0) {
  constexpr int Bk = Config::inputs, Ct = kHasAvx512 ? 2 : 1, Nt = kHasAvx512 ? 12 : 6;
  static_assert(Config::rows % Nt == 0 && Config::columns % (Ct * kLanes) == 0);
  const int left = A.width - k0 < Bk ? A.width - k0 : Bk;
  const int steps = kPaired<T> ? (left + 1) / 2 : left;
  const PackedColumns<T, Bk, Config::columns> packed(B.from(k0), steps);
  const auto columns = A.columns(k0, A.width);
  for (int c = 0; c < C.kVecs && c * kLanes < B.width; c += Ct) {
    for (int row = 0; row < Config::rows && row < A.size(); row += Nt) {
      add_rows<Nt, Ct, T>(C, columns, packed, row, c, steps);
    }
  }
  C.empty = false;
}

// Calls f(address in m, 16 sums, number of columns that m has from there on).
template <class Config, class M, class F>
XF_INLINE void each_sum(BlockSums<Config>& C, const M& m, F f) {
  for (int r = 0; r < Config::rows && r < m.size(); ++r) {
    for (int c = 0; c < C.kVecs && c * kLanes < m.width; ++c) {
      f(m.row(r) + c * kLanes, C.x[r][c], m.width - c * kLanes);
    }
  }
}
template <class Config>
XF_INLINE void add_from(BlockSums<Config>& C, const Rows<float>& sums) {
  each_sum(C, sums, [](const float* at, f32x16& x, int count) {
    if (count >= kLanes) {
      x += load_as<f32x16>(at);
    } else {
      for (int i = 0; i < count; ++i) x[i] += at[i];
    }
  });
}
template <class Config>
XF_INLINE void add_to(const Rows<float>& sums, BlockSums<Config>& C, bool adds) {
  if (adds) add_from(C, sums);
  each_sum(C, sums, [](float* at, const f32x16& x, int count) { store_some(at, x, count); });
}
template <class T, class Config>
XF_INLINE void store_block(const Rows<T>& out, BlockSums<Config>& C) {
  each_sum(C, out, [](T* at, const f32x16& x, int count) { store_some(at, x, count); });
}

}  // namespace xeflash::cpu
