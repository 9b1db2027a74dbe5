// What matmul_add is written in, beside the vocabulary of tiles:
//
//   Slope<T>           elements of A: fp32, where T is not multiplied as it is
//   BlockSums<Config>  sums of a block of rows and columns, 0 at first
//   allocate_block     shared memory for them
//   add_block          += A B for the steps from one on; A has zeros up to a multiple of a block
//   add_to, add_from   to rows of sums in fp32, or in their place; from there
//   store_block        as elements of the result
#pragma once

#include "products/matmul_params.hpp"
#include "tile/tile.hpp"

#if XEFLASH_BACKEND_CPU
#include "cpu/blocks.hpp"
#else
#include "xe/blocks.hpp"
#endif
