// The vocabulary of products of few rows, beside that of tiles:
//
//   Products<Config>   the sums of a block of outputs for a block of rows
//   allocate_products  allocates the shared memory for them
//   add_products       sums += x W^T for one block of inputs
//   sums_of_turns      adds up the sums of the threads of a group
//   store_products     stores the sums, plus a bias, as rows of the result
#pragma once

#include "products/weights.hpp"
#include "tile/tile.hpp"

#if XEFLASH_BACKEND_CPU
#include "cpu/products.hpp"
#else
#include "xe/products.hpp"
#endif
