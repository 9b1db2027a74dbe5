// The parameters that a launch passes to matmul_softmax.
#pragma once

#include <cstdint>

namespace xeflash {

constexpr int kBatchDims = 6;

// Matrices of a batch; strides in elements, 0 where all have the same. The elements of a row lie
// side by side but for a bias.
struct MatricesArg {
  void* data;
  int64_t row, col;
  int64_t batch[kBatchDims];
};

struct MatmulSoftmaxParams {
  MatricesArg a, b, bias, out;  // (rows, inputs), (columns, inputs), (rows, columns); no bias: null
  float* tiles;                 // scores of each worker's rows, where these are kept in memory
  int32_t sizes[kBatchDims];    // of the batch
  int32_t rows, columns, inputs;
  int32_t groups, workers;  // blocks of rows of a work-group, and work-groups that take turns
  int32_t is_log;
  float scale;
};

}  // namespace xeflash
