// The types of tiles for few rows.
#pragma once

#include "xe/row_byte_values.hpp"
#include "xe/row_nibbles.hpp"
#include "xe/row_shared_bytes.hpp"
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
// Q beside keys in 8 bits, for D whose sums fit in 32 bits. Its planes stay in registers if they
// take at most 3/16 of them.
template <class E, int D>
constexpr bool kByBytes = kQuantised<E> && D % kByteDepth == 0 && D < 512;
template <class E, int R, int D>
using RowPlanes = std::conditional_t<kPlanes<E> * R * D <= kGrfBytes * 3 / 16, PlanesLeft<E, R, D>,
                                     SharedPlanes<E, R, D>>;
template <class T, int R, int D, int N, class E>
using LoneRowLeft =
    std::conditional_t<kByBytes<E, D>, RowPlanes<E, R, D>, MatrixRowLeft<T, R, D, N, E>>;
template <class T, int R, int D, int N, class E>
using StagedRowLeft =
    std::conditional_t<kByBytes<E, D>, StagedPlanes<E, R, D, N>, SharedRight<T, R, D, N>>;
template <class T, int R, int D, int N, class E>
using RowLeft = std::conditional_t<
    !kByMatrixUnit<R>, RowMajor<R, D>,
    std::conditional_t<Group::staged, StagedRowLeft<T, R, D, N, E>,
                       std::conditional_t<Group::team == 1, LoneRowLeft<T, R, D, N, E>,
                                          TeamLeft<R, N, LoneRowLeft<T, R, D, N, E>>>>>;
// P, which stays in fp32 for the vector unit, and until it is multiplied by the scales of V.
template <class T, int R, int C, class E>
using RowProbs =
    std::conditional_t<!kByMatrixUnit<R>, RowMajor<R, C>,
                       std::conditional_t<kQuantised<E>, FloatProbs<T, R, C>, Left<T, R, C>>>;
template <class T, int R, int C, class E>
using MatrixRowOutput = std::conditional_t<kQuantised<E> && !kNibbles<E>, ByteSums<T, E, R, C>,
                                           OutputOf<Tile<R, C>, E>>;
template <class T, int R, int C, class E>
using RowOutput = std::conditional_t<kByMatrixUnit<R>, MatrixRowOutput<T, R, C, E>, RowMajor<R, C>>;

// The blocks in which the rows of O go from thread to thread.
template <int R, int D>
struct OutputBlocks<RowMajor<R, D>> {
  static constexpr int kPerRow = RowMajor<R, D>::kColumns / kWide;
  static constexpr int kRows = R, kCount = R * kPerRow, kParts = 1, kPart = kWide;
  static constexpr int row(int block, int) { return block / kPerRow; }
};

}  // namespace xeflash::xe
