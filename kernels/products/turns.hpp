// The vocabulary of kernels in which all threads of a group work on one row, in turns:
//
//   kBlock              columns that a thread takes in one turn
//   allocate_turns      allocates the shared memory for fold_turns
//   fold_turns            combines one value of each thread, in the order of the threads
//   Row<T>              a row of logits; at(column) reads kLanes of them, with -inf in the place of
//                       NaN and past the last column
//   as_ints, to_words, Words  the bits of floats as ints; ints as words; words of random bits
//   floats_of_halves    converts integers of 16 bits to floats, exactly
//   is_any              whether a mask holds in any lane
//   largest_of, sum_of_lanes  the largest lane of a vector; the sum of its lanes
//   number_of_row, halves_of_row  the value of a PerRow for a row; its two 32-bit halves
//   store_token         stores the token of a row
#pragma once

#include "products/sample_params.hpp"
#include "tile/tile.hpp"

#if XEFLASH_BACKEND_CPU
#include "cpu/turns.hpp"
#else
#include "xe/turns.hpp"
#endif
