// The vocabulary of matmul_add, beside that of tiles:
//
//   Slope<T>           element type of A: T, or fp32 where T is not multiplied directly
//   BlockSums<Config>  the sums of a block of rows and columns, initially 0
//   allocate_block     allocates the shared memory for products of blocks
//   add_block          adds A B for one block of inputs; A is padded with zeros to whole blocks
//   add_to, add_from   add the block to sums in fp32 in memory, or overwrite them; add these to it
//   store_block        stores the block as elements of the result
#pragma once

#include "products/matmul_params.hpp"
#include "tile/tile.hpp"

#if XEFLASH_BACKEND_CPU
#include "cpu/blocks.hpp"
#else
#include "xe/blocks.hpp"
#endif
