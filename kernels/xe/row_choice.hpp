// The types of tiles for few rows.
#pragma once

#include "xe/row_shared.hpp"
#include "xe/row_tile.hpp"

namespace xeflash::xe {

// The matrix unit takes multiples of 8 rows; any other number of rows is for the vector unit. The
// tuning tables choose.
template <int R>
constexpr bool kByMatrixUnit = R % 8 == 0;
template <int R, int C>
using RowTile = std::conditional_t<kByMatrixUnit<R>, Tile<R, C>, RowMajor<R, C>>;
// Q. It stays in registers if it takes at most a quarter of them, or 9/32 if a block has at most 16
// keys: its loop needs few other registers, unless it widens quantised elements E. The vector unit
// has Q in fp32.
template <class T, int R, int D, int N, class E>
using MatrixRowLeft =
    std::conditional_t<(R * D * sizeof(T) <= kGrfBytes * (N > 16 ? 8 : 9) / 32 && !kQuantised<E>),
                       Left<T, R, D>, Left<T, R, D, Placed<Rows<const T>, 0>>>;
template <class T, int R, int D, int N, class E>
using RowLeft = std::conditional_t<
    !kByMatrixUnit<R>, RowMajor<R, D>,
    std::conditional_t<Group::staged, SharedRight<T, R, D, N>,
                       std::conditional_t<Group::team == 1, MatrixRowLeft<T, R, D, N, E>,
                                          TeamLeft<R, N, MatrixRowLeft<T, R, D, N, E>>>>>;
// P, which stays in fp32 for the vector unit.
template <class T, int R, int C, class E>
using RowProbs = std::conditional_t<kByMatrixUnit<R>, Left<T, R, C>, RowMajor<R, C>>;

// The blocks in which the rows of O go from thread to thread.
template <int R, int D>
struct OutputBlocks<RowMajor<R, D>> {
  static constexpr int kPerRow = RowMajor<R, D>::kColumns / kWide;
  static constexpr int kRows = R, kCount = R * kPerRow, kParts = 1, kPart = kWide;
  static constexpr int row(int block, int) { return block / kPerRow; }
};

}  // namespace xeflash::xe
