// The parameters that a launch passes to matmul_add.
#pragma once

#include <cstdint>

namespace xeflash {

struct MatmulAddParams {
  const void *a, *b;                        // (rows, inputs), (inputs, columns)
  float* sums;                              // (rows, columns), in fp32
  void* out;                                // null: the result is in sums
  int64_t a_row, b_row, sums_row, out_row;  // strides
  int32_t rows, columns, inputs, workers;
  int32_t out_columns;  // columns of out, at most `columns`
  int32_t adds;         // whether to add to the values in sums
};

}  // namespace xeflash
