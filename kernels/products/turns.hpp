// What is written of rows that all threads of a group pass together:
//
//   kBlock              columns that a thread takes at a time: its turn
//   allocate_turns      shared memory for what threads find
//   of_turns            brings together what each has found, in their order
//   Row<T>              of logits; at gives kLanes of them from a column on, -inf in the place of
//                       what is not there, and of what is no number
//   as_ints, to_words, Words  the bits of floats, of ints; words of random bits
//   floats_of_halves    of 16 bits each, exactly
//   is_any              whether a mask holds in a lane
//   largest_of, sum_of_lanes  of a vector
//   number_of_row, halves_of_row  of a PerRow
//   store_token         of a row
#pragma once

#include "products/sample_params.hpp"
#include "tile/tile.hpp"

#if XEFLASH_BACKEND_CPU
#include "cpu/turns.hpp"
#else
#include "xe/turns.hpp"
#endif
