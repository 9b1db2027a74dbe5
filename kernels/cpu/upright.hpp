// A product that reduces the lanes of a tile: O^T += B^T S^T, where S^T is a transposed tile, whose
// rows are lanes. Its elements are broadcast one by one; the lanes of the product are columns of B.
#pragma once

#include "cpu/mma.hpp"

namespace xeflash::cpu {

// O^T: D rows, which are lanes, by C columns.
template <int D, int C>
using UprightTile = Columns<f32x16, round_up(D, kLanes), C>;

// Number of steps of the product: a step takes a row, or a pair of rows that are 16 apart.
template <class T, int N>
constexpr int kUprightSteps = kPaired<T> && N > kLanes ? N / 2 : N;
template <class T>
using UprightVector = std::conditional_t<kPaired<T>, u32x16, f32x16>;

// N rows of B, lane = column. Rows that do not exist are 0.
template <class T, int N, int D>
struct Upright : Columns<UprightVector<T>, round_up(D, kLanes), kUprightSteps<T, N>> {
  using Element = T;
  static constexpr int kSteps = kUprightSteps<T, N>;
};
template <int Count, class T>
XF_INLINE void load_vector(f32x16& v, const T* row, const T*) {
  v = load_widened<Count>(row);
}
template <int Count, class T>
XF_INLINE void load_vector(u32x16& v, const T* row, const T* other) {
  v = interleave<Count>(row, other);
}
template <class T, int N, int D, class Rows>
XF_INLINE void load(Upright<T, N, D>& B, const Rows& m) {
  const T zeros[round_up(D, kLanes)] = {};
  for (int i = 0; i < B.kSteps; ++i) {
    const int row = kPaired<T> ? i + i / kLanes * kLanes : i, other = row + kLanes;
    const T* first = row < m.size() ? m.row(row) : zeros;
    const T* second = other < N && other < m.size() ? m.row(other) : zeros;
    int d = 0;
    for (; d + kLanes <= D; d += kLanes) {
      load_vector<kLanes>(B.at(i, d / kLanes), first + d, second + d);
    }
    if constexpr (D % kLanes) {
      load_vector<D % kLanes>(B.at(i, d / kLanes), first + d, second + d);
    }
  }
}

// A tile of R rows in the form in which it is multiplied: as it is, or as pairs of rows in bf16.
template <class T, int R, int C>
struct ReducedRows {
  const Tile<R, C>& x;
  XF_INLINE explicit ReducedRows(const Tile<R, C>& t) : x(t) {}
};
template <class T, int R, int C>
  requires kPaired<T>
struct ReducedRows<T, R, C> {
  Columns<u32x16, kUprightSteps<T, R>, C> x;
  XF_INLINE explicit ReducedRows(const Tile<R, C>& t) {
    for (int r = 0; r < R / kLanes; r += 2) {
      for (int c = 0; c < t.cols; ++c) {
        x.at(c, r / 2) = pack_pairs(t.at(c, r), R > kLanes ? t.at(c, r + 1) : f32x16(0.f));
      }
    }
  }
};

// O^T += B^T S^T
template <class T, int N, int D, int C>
XF_INLINE void mma_upright(UprightTile<D, C>& O, const Upright<T, N, D>& B, const Tile<N, C>& S) {
  using Element = std::conditional_t<kPaired<T>, uint32_t, float>;
  constexpr int kRows = round_up(D, kLanes), Rt = kTogether<kRows>, Nt = kKeyTile<C> / 2;
  static_assert(C % Nt == 0 && RegisterTile<N, C>::keys % Nt == 0);  // as the columns of S
  const ReducedRows<T, N, C> reduced(S);
  for (int d = 0; d < kRows / kLanes; d += Rt) {
    for (int c = 0; c < S.cols; c += Nt) {
      f32x16 acc[Nt][Rt] = {};
      for (int r = 0; r < B.kSteps / kLanes; ++r) {
        const auto* b = &B.at(r * kLanes, d);
        const Element* s[Nt];
        XF_UNROLL for (int n = 0; n < Nt; ++n) {
          s[n] = reinterpret_cast<const Element*>(&reduced.x.at(c + n, r));
        }
        for (int i = 0; i < kLanes; ++i, b += Rt) {
          XF_UNROLL for (int n = 0; n < Nt; ++n) {
            XF_UNROLL for (int v = 0; v < Rt; ++v) {
              acc[n][v] = multiply_add(acc[n][v], s[n][i], b[v]);
            }
          }
        }
      }
      XF_UNROLL for (int n = 0; n < Nt; ++n) {
        XF_UNROLL for (int v = 0; v < Rt; ++v) O.at(c + n, d + v) += acc[n][v];
      }
    }
  }
}

// Stores the columns of O^T times `factor` as rows of a matrix, or adds them to those rows.
template <int D, bool AddsUp, int C, class Rows>
XF_INLINE void store_upright(const Rows& m, const UprightTile<D, C>& O, float factor) {
  for (int c = 0; c < C && c < m.size(); ++c) {
    auto* row = m.row(c);
    const auto store_part = [&]<int Count>(std::integral_constant<int, Count>, int d) {
      f32x16 x = O.at(c, d / kLanes) * factor;
      if constexpr (AddsUp) x += load_floats<Count>(row + d);
      store_narrowed<Count>(row + d, x);
    };
    int d = 0;
    for (; d + kLanes <= D; d += kLanes) store_part(std::integral_constant<int, kLanes>(), d);
    if constexpr (D % kLanes) store_part(std::integral_constant<int, D % kLanes>(), d);
  }
}

}  // namespace xeflash::cpu
