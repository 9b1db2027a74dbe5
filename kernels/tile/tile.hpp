// The vocabulary that the kernels are written in. It knows no attention and names no device: the
// backend that is compiled in decides how a tile is laid out and which instructions move and
// multiply it. tile/contract.hpp checks each backend against this list, word by word;
// products/contract.hpp does so for the lists of products/*.hpp.
//
// Tiles, in registers:
//
//   Tile<R, C>                 R rows of C columns in fp32
//   ColVec<R>, ColSum<R>       one fp32 value per row; the sum of each row
//   Across<C>                  one fp32 value per column
//   Left<T, R, C, Where>       the left operand of a product; rows.hpp says where it may be kept
//   RightT<T, N, D, Block>     the right operand of mma_ABt, the N rows of a block of K
//   Right<T, N, D, Block>      the right operand of mma_AB, the N rows of a block of V
//   Operand<T, E>              the type in which elements E of a cache are multiplied
//
// Tiles and memory:
//
//   Rows<T>                    the rows of a matrix in memory, see rows.hpp
//   load, store, add           read a tile; write it; add it in fp32 to what is there
//   load_values                reads one value per row
//   BlocksOf<Operand>          makes a right operand of each block of rows of a matrix
//   AcrossRows<C>              reads one value per column of each block
//   prefetch, Ahead            ask for the rows of the next block
//
// Products, and what becomes of their results:
//
//   fill                       sets all elements to one value
//   mma_ABt, mma_AB            S = A K^T; O += P V
//   settled                    returns O when all rows of V are added
//   each                       calls f(value, row, column); row or column is a vector
//   Numbers<N>                 one int per row or per column, which `each` passes in their place
//   map                        calls f of the values of each row
//   log_probs, any_above       X = scale S - m, log2 P; says whether any element is above a limit
//   any_beyond                 says whether any value per row has a magnitude above a limit
//   row_max, add_row_sums      the maximum of each row; l += rowsum P
//   exp2_and_sum, kExp2Headroom
//                              P = 2^X as a left operand, and its sums; both are multiplied by
//                              2^-kExp2Headroom
//   exp2_minus, lower          2^(S - x) and min(S - x, 0), for a value x per row or column
//   weigh                      dS = P (dP - Delta)
//   narrow                     turns a tile into a left operand
//
// The threads of a group:
//
//   Group                      how many threads have each task, which of them this one is, and
//                              where they meet: xe/threads.hpp
//   Pooled                     joins the parts of a left operand that the threads of a team make
//   Joint                      joins the parts of P and the maxima that they are relative to, and
//                              adds up l over a team
//   Handed                     a tile that one thread of a pair hands to the other
//   merge_turns                merges O, m and l of threads that took turns at the keys
//   shared_bytes, allocate_shared
//                              the shared memory that a tile takes; allocates that of a kernel
//
// For few rows against a long cache, with lanes along a row:
//
//   RowTile<R, C>, RowVec<R>, RowSum<R>
//                              fp32 elements; one fp32 value per row; the sum of each row
//   RowLeft<T, R, D, N, E>     Q, which is multiplied by N rows of E at a time
//   RowProbs<T, R, C, E>       P, for rows of V in elements E
//   RowOutput<T, R, C, E>      the tile O, or its sums while such rows are added
//   dot_rows, accumulate_rows  S = A K^T, added up over the team; O += P V
//   each_row, each_in_row      call f(row) for every row; f(value, column) along one row
//   store_row                  writes one row
//
// Numbers, one lane or a vector of lanes:
//
//   bf16, f16                  elements of 16 bits
//   Floats, Ints, Bools        vectors of fp32, of int32, of the results of a comparison
//   lane_index, kLanes         the vector 0, 1, ...; its number of lanes
//   lowest_of                  the least of a vector of integers
//   select, max, at_most       a where a mask holds, else b; the larger; the smaller integer
//   rounded<T>                 the value that remains when a value is stored as T
//   magnitude, divide, tanh    |x|; a / b; tanh(x)
//   exp2, log2, log2_of_any    2^x; log2(x) of finite positive values; log2(x) of any value
//   to_floats, to_ints, to_bools
//                              convert as C++ does; a float beyond all ints becomes the nearest
//                              one, and NaN 0
//   value_at                   reads elements of an array, or of a matrix, at some positions
//
// A word that only one header needs is listed there, in a line that begins with "Word:".
#pragma once

#if XEFLASH_BACKEND_CPU
#include "cpu/backend.hpp"
#elif XEFLASH_BACKEND_XE
#include "xe/backend.hpp"
#else
#error "choose a backend: XEFLASH_BACKEND_CPU or XEFLASH_BACKEND_XE"
#endif
