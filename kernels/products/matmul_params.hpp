// The parameters that a launch passes to matmul_add.
#pragma once

#include <cstdint>

namespace xeflash {

struct MatmulAddParams {
  const void *a, *b;                        // (rows, inputs), (inputs, columns)
  float* sums;                              // (rows, columns), in fp32
  void* out;                                // null: sums are the result
  int64_t a_row, b_row, sums_row, out_row;  // strides
  int32_t rows, columns, inputs, workers;
  int32_t out_columns;  // of `columns`, those that the result has
  int32_t adds;         // to what sums has
};

}  // namespace xeflash
