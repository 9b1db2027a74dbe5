// Products of the Xe backend for few rows, while K and V stream past once for all of them: dpas on
// rows in eights (without 2D block messages: row_shared.hpp), or multiply-adds of the vector unit
// in fp32, with
//   2D block messages: K transposed, lane = key, so that no score needs a sum across lanes.
//   Else: rows by block loads, lane = column; sums across lanes are folded for 8 keys at a
//   time. A key a lane would take addresses of 64 bits for every 8 dwords of every key.
#pragma once

#include "xe/row_choice.hpp"

namespace xeflash::xe {

template <class T, int N>
XF_INLINE simd<float, N> widen(simd<T, N> x) {
  return esimd::convert<float>(x);
}

// Elements in dwords, taken from N dwords at a time.
template <class T, int Dwords>
struct DwordElements {
  static constexpr int kPerDword = 4 / sizeof(T);
  simd<uint32_t, Dwords> dwords;

  // Element i of each.
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

// Of rows that are all there.
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

// f(values, column) for all of a row, in as few messages as have powers of two; 0 if not `wanted`.
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

// ---- ahead of time ------------------------------------------------------------------------------

// N rows: those of one message are beside each other. Rows by block loads need no prefetch, as
// those of several keys are under way at a time.
template <int N, int D, class Block>
XF_INLINE void prefetch_rows(const Block& m) {
  const auto rows = elements(m);
  if constexpr (kReadsBlocks<std::remove_const_t<decltype(rows)>>) {
    using T = ElementOf<Block>;
    constexpr int kSide = sizeof(T) == 2 ? 2 : 1, kColumns = 64 / sizeof(T);
    constexpr int kRows = N < 32 ? N : 32;
    BlockMessage<T, kColumns / kSide, kRows, kSide> message(surface<D>(rows));
    XF_UNROLL for (int row = 0; row < N; row += kRows) {
      message.move_y(row);
      XF_UNROLL for (int c = 0; c < D; c += kColumns) {
        message.move_x(c);
        message.prefetch();
      }
    }
  }
}

// ---- S = A K^T ----------------------------------------------------------------------------------

template <class T, int R, int N, int D>
XF_INLINE void dot_transposed(RowMajor<R, N>& S, const RowMajor<R, D>& A, const Rows<const T>& K) {
  constexpr int kKeys = N < 32 ? N : 32, kPerDword = 4 / sizeof(T), kColumns = 8 * kPerDword;
  BlockMessage<uint32_t, 8, kKeys> message(surface<D>(K));
  XF_UNROLL for (int key = 0; key < N; key += kKeys) {
    message.move_y(key);
    XF_UNROLL for (int column = 0; column < D; column += kColumns) {
      message.move_x(column / kPerDword);
      const DwordElements<T, 8 * kKeys> elements{message.load_transposed()};
      // The columns of a message are summed apart, then added: sums of few terms are rounded
      // little.
      RowMajor<R, kKeys> sum;
      XF_UNROLL for (int c = 0; c < kColumns && column + c < D; ++c) {
        const auto k = elements.template get<kKeys>(c / kPerDword * kKeys, c % kPerDword);
        XF_UNROLL for (int r = 0; r < R; ++r) {
          const auto q = A.template broadcast<kKeys>(r, column + c);
          auto s = sum.template columns<kKeys>(r, 0);
          if (c == 0)
            s = k * q;
          else
            s += k * q;
        }
      }
      XF_UNROLL for (int r = 0; r < R; ++r) {
        auto s = S.template columns<kKeys>(r, key);
        if (column == 0)
          s = sum.template columns<kKeys>(r, 0);
        else
          s += sum.template columns<kKeys>(r, 0);
      }
    }
  }
}

template <int R, int N, int D, class M>
XF_INLINE void dot_folded(RowMajor<R, N>& S, const RowMajor<R, D>& A, const M& K) {
  constexpr int kKeys = 8, kParts = 8;  // sums of a key, before the last steps
  const auto begin = addresses<N>(K, 0, 0);
  XF_UNROLL for (int first = 0; first < N; first += kKeys) {
    simd<float, R * kKeys * kParts> sums;  // [row][key][part]
    XF_UNROLL for (int key = 0; key < kKeys; ++key) {
      RowMajor<R, kWide> sum;
      fill(sum, 0.f);
      each_in_memory<D>(row_at<M>(begin, first + key), Always(), [&](auto k, int c) {
        XF_UNROLL for (int r = 0; r < R; ++r) {
          sum.template columns<k.length>(r, 0) += k * A.template columns<k.length>(r, c);
        }
      });
      XF_UNROLL for (int r = 0; r < R; ++r) {
        floats half = sum.template columns<kLanes>(r, 0) + sum.template columns<kLanes>(r, kLanes);
        XF_UNROLL for (int i = kParts; i < kLanes; i += kParts) {
          half.template select<kParts, 1>(0) += half.template select<kParts, 1>(i);
        }
        sums.template select<kParts, 1>((r * kKeys + key) * kParts) = part<kParts>(half, 0);
      }
    }
    const auto scores = fold_rows<R * kKeys, kParts>(sums, [](auto a, auto b) { return a + b; });
    XF_UNROLL for (int r = 0; r < R; ++r) {
      S.template columns<kKeys>(r, first) = part<kKeys>(scores, r * kKeys);
    }
  }
}

// S = A K^T for rows of K up to K.count, which may lie anywhere; the rest of S is not meaningful.
template <int R, int N, int D, class Block>
XF_INLINE void dot_rows(RowMajor<R, N>& S, const RowMajor<R, D>& A, const Block& K) {
  const auto rows = elements(K);
  if constexpr (kReadsBlocks<std::remove_const_t<decltype(rows)>>)
    dot_transposed(S, A, rows);
  else
    dot_folded(S, A, rows);
  if constexpr (kScaled<Block>) scale_columns(S, K.scales);
}

// ---- O += P V -----------------------------------------------------------------------------------

template <int R, int N, int D, class Values>
XF_INLINE void accumulate(RowMajor<R, D>& O, const RowMajor<R, N>& P, int key, Values v, int c) {
  XF_UNROLL for (int r = 0; r < R; ++r) {
    O.template columns<v.length>(r, c) += v * P.template broadcast<v.length>(r, key);
  }
}

// For rows of V up to V.count.
template <int R, int N, int D, class Block>
XF_INLINE void accumulate_rows(RowMajor<R, D>& O, RowMajor<R, N> P, const Block& V) {
  const auto values = elements(V);
  using T = ElementOf<Block>;
  if constexpr (kScaled<Block>) scale_columns(P, V.scales, kFactorUnit<T>);
  if constexpr (kReadsBlocks<std::remove_const_t<decltype(values)>>) {
    constexpr int kKeys = N < 32 ? N : 32, kLine = sizeof(T) == 4 ? 16 : kWide,
                  kColumns = D < kLine ? 16 : kLine;
    BlockMessage<T, kColumns, kKeys> message(surface<D>(values));
    XF_UNROLL for (int key = 0; key < N; key += kKeys) {
      message.move_y(key);
      XF_UNROLL for (int c = 0; c < D; c += kColumns) {
        message.move_x(c);
        const auto rows = halved<T>(message.load());
        XF_UNROLL for (int k = 0; k < kKeys; ++k) {
          accumulate(O, P, key + k, widen(part<kColumns>(rows, k * kColumns)), c);
        }
      }
    }
  } else {
    const auto begin = addresses<N>(values, 0, 0);
    const auto accumulate_keys = [&](auto is_there) {
      XF_UNROLL for (int key = 0; key < N; ++key) {
        each_in_memory<D>(row_at<decltype(values)>(begin, key), is_there(key),
                          [&](auto v, int c) { accumulate(O, P, key, v, c); });
      }
    };
    if (values.size() >= N)
      accumulate_keys([](int) { return Always(); });
    else  // 0 in their place, as 0 times infinity is no number
      accumulate_keys([&](int key) { return key < values.size(); });
  }
}

// ---- the same by the matrix unit ----------------------------------------------------------------

template <template <class, int, int> class AnyLeft, class T, int R, int N, int D, class Block>
XF_INLINE void dot_rows(Tile<R, N>& S, const AnyLeft<T, R, D>& A, const Block& K) {
  static_assert(sizeof(T) == 2);
  mma_ABt(S, A, RightT<T, N, D, Block>(K));
}
template <class T, int R, int N, int D, class Block>
  requires(!Group::staged)
XF_INLINE void accumulate_rows(Tile<R, D>& O, const Left<T, R, N>& P, const Block& V) {
  mma_AB(O, P, Right<T, N, D, Block>(V));
}

}  // namespace xeflash::xe
