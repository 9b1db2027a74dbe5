// Products of the Xe backend for few rows; K and V are read once for all of them. Multiples of 8
// rows go through dpas (without 2D block messages: row_shared.hpp). Any other number of rows goes
// through multiply-adds of the vector unit in fp32:
//   With 2D block messages, K is loaded transposed, lane = key, so no score needs a sum across
//   lanes.
//   Without, rows come by block loads, lane = column, and sums across lanes are folded for 8 keys
//   at a time. Lane = key would take addresses of 64 bits for every 8 dwords of every key.
#pragma once

#include "xe/mma.hpp"
#include "xe/row_memory.hpp"

namespace xeflash::xe {

// ---- ahead of time ------------------------------------------------------------------------------

// Prefetches N rows, up to 32 neighbours by one message. Rows that come by block loads need no
// prefetch, as loads of several keys are in flight at a time.
template <int N, int D, class Block>
XF_INLINE void prefetch_rows(const Block& m) {
  const auto rows = elements(m);
  if constexpr (kReadsBlocks<std::remove_const_t<decltype(rows)>>) {
    using T = ElementOf<Block>;
    constexpr int kSide = sizeof(T) == 2 ? 2 : 1, kColumns = 64 / sizeof(T);
    constexpr int kRows = N < 32 ? N : 32, kElements = D / kPerElement<T>;
    BlockMessage<T, kColumns / kSide, kRows, kSide> message(surface<kElements>(rows));
    XF_UNROLL for (int row = 0; row < N; row += kRows) {
      message.move_y(row);
      XF_UNROLL for (int c = 0; c < kElements; c += kColumns) {
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
      const DwordElements<T, 8 * kKeys> elements{message.template load<Form::transposed>()};
      // The columns of a message are summed on their own and then added: short sums lose less to
      // rounding.
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
  constexpr int kKeys = 8, kParts = 8;  // kParts: partial sums of a key, before the fold
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

// S = A K^T for the rows of K up to K.count, which may lie anywhere; the rest of S is meaningless.
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

// O += P V for the rows of V up to V.count.
template <int R, int N, int D, class Block>
  requires(!kNibbles<ElementOf<Block>>)
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
    else  // missing rows read 0, as 0 times infinity is NaN
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
XF_INLINE void accumulate_rows(Tile<R, D>& O, const RegisterLeft<T, R, N>& P, const Block& V) {
  mma_AB(O, P, Right<T, N, D, Block>(V));
}

}  // namespace xeflash::xe
