// The parameters that a launch passes to matmul_softmax.
#pragma once

#include <cstdint>

namespace xeflash {

constexpr int kBatchDims = 6;

// The matrices of a batch; strides in elements, 0 along axes that are broadcast. `col` is the
// stride of a bias' columns; the rows of other matrices are contiguous.
struct MatricesArg {
  void* data;
  int64_t row, col;
  int64_t batch[kBatchDims];
};

struct MatmulSoftmaxParams {
  MatricesArg a, b, bias, out;  // (rows, inputs), (columns, inputs), (rows, columns); no bias: null
  float* tiles;                 // scores of each worker's rows, if these are kept in memory
  int32_t sizes[kBatchDims];    // extents of the batch
  int32_t rows, columns, inputs;
  int32_t groups, workers;  // blocks of a work-group's rows; work-groups that take turns at them
  int32_t is_log;
  float scale;
};

}  // namespace xeflash
