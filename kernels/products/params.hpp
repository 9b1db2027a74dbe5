// The parameters that a launch passes to linear.
#pragma once

#include <cstdint>

namespace xeflash {

// out = x W^T + bias. Rows of x, out and W are contiguous; a row of W has the weights of one
// output. The stride of packed 4-bit weights is in bytes.
struct LinearParams {
  const void *x, *weight, *bias;  // no bias: null
  void* out;
  int64_t x_row, weight_row, out_row;  // strides
  const void* scales;                  // one per group of inputs and output; null: none
  const int8_t* zeros;                 // one per group and output; null: 8 for 4 bits, else 0
  int64_t scale_group, scale_output, zero_group, zero_output;  // strides
  int32_t rows, outputs, inputs;
  int32_t group;  // inputs that share a scale
};

}  // namespace xeflash
