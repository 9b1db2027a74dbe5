// What products of few rows are written in, beside the vocabulary of tiles:
//
//   Products<Config>   sums of a block of outputs for a block of rows
//   allocate_products  shared memory for them
//   add_products       += x W^T for the inputs from one on
//   sums_of_turns      adds up what the threads of a group have
//   store_products     with a bias, to the rows of the result
#pragma once

#include "products/weights.hpp"
#include "tile/tile.hpp"

#if XEFLASH_BACKEND_CPU
#include "cpu/products.hpp"
#else
#include "xe/products.hpp"
#endif
