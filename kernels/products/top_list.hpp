// Lists of the largest logits of a row, in memory, the largest first.
//
//   TopLists<R>   the lists of a thread's rows: add inserts a tile of logits
//   TopList       one list: insert, value, token; last: its k-th value; store writes the result
#pragma once

#include "products/logit_params.hpp"

#if XEFLASH_BACKEND_CPU
#include "cpu/top_list.hpp"
#else
#include "xe/top_list.hpp"
#endif
