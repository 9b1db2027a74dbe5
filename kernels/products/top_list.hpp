// Lists of the largest logits of a row, in memory, the largest first.
//
//   TopLists<R>   those of the rows of a thread: add takes a tile from a column on
//   TopList       one: insert, value, token; last is its k-th value; store writes the result
#pragma once

#include "products/logit_params.hpp"

#if XEFLASH_BACKEND_CPU
#include "cpu/top_list.hpp"
#else
#include "xe/top_list.hpp"
#endif
