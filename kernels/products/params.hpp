// The parameters that a launch passes to a kernel of products.
#pragma once

#include <cstdint>

namespace xeflash {

// out = x W^T + bias. A row of x and of out lies in one piece, and so does a row of W, which has
// the weights of one output; packed weights of 4 bits are counted in bytes.
struct LinearParams {
  const void *x, *weight, *bias;  // no bias: null
  void* out;
  int64_t x_row, weight_row, out_row;  // strides
  const void* scales;                  // of a group of inputs and an output; null: none
  const int8_t* zeros;                 // likewise; null: 8 for 4 bits, else 0
  int64_t scale_group, scale_output, zero_group, zero_output;  // strides
  int32_t rows, outputs, inputs;
  int32_t group;  // inputs that share a scale
};

}  // namespace xeflash
