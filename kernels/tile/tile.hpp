// The vocabulary that the kernels are written in. It knows no attention and names no device: the
// backend that is compiled in decides how a tile is laid out and which instructions move and
// multiply it.
//
//   Rows<T>, PackedRows<T>     rows of a matrix in memory, see rows.hpp
//   Tile<R, C>, ColVec<R>, ColSum<R>
//                              fp32 accumulators; one fp32 value per row; its row sums
//   fill                       a tile with one value
//   Left<T, R, C>              left operand of a product: load
//   PlacedLeft<Rows, T, R, C>  the same, kept elsewhere where registers are few: Q
//   AwayLeft                   the same, kept elsewhere if the device has a place
//   RightT<T, N, D, Block>     right operand of mma_ABt: its columns are the N rows of a Block, K;
//                              may stream from memory
//   Right<T, N, D, Block>      right operand of mma_AB: N rows of a Block, V, likewise
//   BlocksOf<RightT or Right>  those of one matrix after the other: at a row
//   Operand<T, E>              what elements E of a cache are multiplied as with queries of T
//   mma_ABt, mma_AB            S = A K^T, O += P V
//   AllColumns, columns_seen   which columns of a block those products need: all; up to those that
//   a
//                              mask shows some of the rows which the device takes together
//   each                       f(value, row, column) over a tile; one of the two is a vector
//   add_row_sums, column_sums  l += rowsum P; the other way
//   row_max, exp2_and_sum, kExp2Headroom
//                              the halves of a softmax; the second gives P as a left operand, and
//                              everything 2^-kExp2Headroom times
//   lower                      S = min(S - m, 0) where m is not 0, a value per row or per column
//   exp2_minus, weigh          P without its sum, relative to a value per row or per column;
//                              dS = P (dP - Delta)
//   Across<C>, AcrossRows<C>, load_across
//                              one fp32 value per column; those of a line of numbers, from one on
//   narrow, row_dots           a tile as a left operand; rowsum(A B) of rows in memory
//   map, any_above, any_beyond  f of the values of each row; is one above another's by a margin, is
//                              one's magnitude above a limit
//   exp2_of, inverse_or_zero   the same in place, without the sum; 1 / l, or 0
//   drop_tile, drop_transposed  zeroes probabilities by random numbers; of transposed tiles
//   load, store, add           tiles from memory, tiles and values per row back to it; added to
//                              what is there, in fp32
//   prefetch, Ahead            rows of the next step, where the device does not see them coming
//   load_values                one value per row from memory
//   kNeighbours, neighbour     tiles of a group that lie side by side and pass the same keys
//   kTeam, member              threads of one of them: each owns columns of O, and scores some of
//                              the keys of a block
//   kGroupsInParts             whether each core has groups of a launch that follow each other
//   kInStep                    whether the threads of a group meet at each block
//   PartOfLeft, Pooled, meet_team
//                              a left operand of a thread's keys, and of the whole block for all
//   kPairs, of_pair, meet_pair, Handed, LeftBeside
//                              two teams have the same rows, each does half of the work: one hands
//                              the other a tile, and each keeps an operand beside one tile of sums
//   Joint, joined              the same of P, with the maxima that its parts are relative to
//   kStaged, kOnePlace         whether a group brings K and V into shared memory together, and V in
//                              the place of K
//   shared_bytes, allocate_shared
//                              of a tile; for all of a kernel
//   reuse_shared               once a tile was read that has no other kind of tile after it
//   kKeyTurns, key_turn        threads that take turns at the keys of the same rows instead
//   merge_turns                gives the first of them what all have found
//   sum_of_team                l of all keys
//
// For few rows against a long cache:
//
//   RowTile<R, C>, RowVec<R>, RowSum<R>
//                              fp32, lanes along a row; one fp32 value per row; row sums
//   RowLeft<T, R, D, N, E>     Q, to be multiplied by N rows of E at a time: load
//   RowProbs<T, R, C>          P
//   dot_rows, accumulate_rows  S = A K^T, summed up over a team that shares out the columns;
//                              O += P V; with K and V streaming past
//   each_row, each_in_row      f(row) for every row; f(value, column) along one
//   hide_columns, load_row, store_row
//   prefetch_rows              asks for rows that are wanted soon
//   rotate, abs_max            of one row: pairs of its columns (RoPE); its largest magnitude
//   add_scaled                 O += w times a row in memory
//
// What a tile's elements are computed with, as numbers or as vectors along a row or a column:
//
//   bf16, f16                  elements of 16 bits
//   Floats, Ints, Mask         fp32, int32; the result of a comparison
//   kLanes, lane_index, lowest_of
//                              how many a vector has; 0, 1, ...; the least of some integers
//   select, max, at_most       a where a mask holds, else b; the larger; the smaller, of integers
//   rounded<T>                 what is left of a value in memory
//   magnitude, inverse, divide, exp2, log2, log2_of_any, sqrt, tanh
//                              log2 of what is finite and above 0, or of anything
//   to_floats, signed_to_floats, to_ints, to_mask
//                              between them, as C++ converts
//   gather, value_at, add_at   elements of an array at positions; adds to them, in an order
//   multiply_high              the upper 32 bits of a product
//   GroupIndex, group_index    which group of the launch this is
#pragma once

#if XEFLASH_BACKEND_CPU
#include "cpu/backend.hpp"
#elif XEFLASH_BACKEND_XE
#include "xe/backend.hpp"
#else
#error "choose a backend: XEFLASH_BACKEND_CPU or XEFLASH_BACKEND_XE"
#endif
