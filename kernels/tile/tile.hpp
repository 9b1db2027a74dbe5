// The vocabulary that the kernels are written in. It knows no attention and names no device: the
// backend that is compiled in decides how a tile is laid out and which instructions move and
// multiply it.
//
//   Rows<T>                    rows of a matrix in memory
//   Tile<R, C>, ColVec<R>      fp32 accumulators; one fp32 value per row (ColSum: its row sums)
//   Left<T, R, C>              left operand of a product: load, negate
//   Query<T, R, C>             the same for Q, which may stay in memory where registers are few
//   Keys<T, N, D, Block>       N rows of K, made from a Block of Rows; may stream from memory
//   Values<T, N, D, .., Block> N rows of V, likewise
//   Operand<T, E>              what elements E of a cache are multiplied as with queries of T
//   mma_ABt, mma_AB            S = A K^T, O += P V
//   each                       f(value, row, column) over a tile; one of the two is a vector
//   row_max, exp2_and_sum      the halves of a softmax; the second gives P as a left operand, and
//                              everything 2^-kExp2Headroom times
//   map, any_above, any_beyond f of the values of each row; is one above another's by a margin, is
//                              one's magnitude above a limit
//   exp2_of                    the same in place, without the sum
//   load, store                tiles from memory, tiles and values per row back to it
//   prefetch                   rows of the next step, where the device does not see them coming
//   PackedRows<T>              rows of several heads, all heads of a query one after the other
//   load_values                one value per row from memory
//   kNeighbours, neighbour     tiles of a group that lie side by side and pass the same keys
//   kTeam, member              threads of one of them: each owns columns of O, and scores some of
//                              the keys of a block
//   joined, Joint<T, R, N>     P of the whole block, for all of them
//   kStaged, allocate_shared   whether a group brings K and V into shared memory together
//   reuse_shared               once a tile was read that has no other kind of tile after it
//   kKeyTurns, key_turn        threads that take turns at the keys of the same rows instead
//   merge_turns                gives the first of them what all have found
//   sum_of_team                l of all keys
//
// For few rows against a long cache:
//
//   RowTile<R, C>, RowVec<R>   fp32, lanes along a row; one fp32 value per row (RowSum: row sums)
//   RowLeft<T, R, D, N, E>     Q, to be multiplied by N rows of E at a time: load, negate
//   RowProbs<T, R, C>          P
//   dot_rows, accumulate_rows  S = A K^T, summed up over a team that shares out the columns;
//                              O += P V; with K and V streaming past
//   each_row, each_in_row      f(row) for every row; f(value, column) along one
//   hide_columns, load_row, store_row
//   prefetch_rows              asks for rows that are wanted soon
#pragma once

#if XEFLASH_BACKEND_CPU
#include "cpu/backend.hpp"
#elif XEFLASH_BACKEND_XE
#include "xe/backend.hpp"
#else
#error "choose a backend: XEFLASH_BACKEND_CPU or XEFLASH_BACKEND_XE"
#endif

namespace xeflash {

constexpr float kInf = __builtin_inff();
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kMostFinite = 0x1.fffffep127f;
// The running maximum of a row that has seen no key: no finite score is below it.
constexpr float kNoScore = -kMostFinite;

}  // namespace xeflash
