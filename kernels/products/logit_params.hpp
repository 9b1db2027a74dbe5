// The parameters that a launch passes to kernels of a language model's head.
#pragma once

#include <cstdint>

namespace xeflash {

// logits = softcap tanh(scale (x W^T + bias) / softcap), or without a softcap scale (x W^T + bias).
struct LogitParams {
  const void *x, *weight, *bias;  // (rows, inputs), (columns, inputs), (columns); no bias: null
  int64_t x_row, weight_row;      // strides
  void* kept;                     // inputs of each worker's rows, where these are kept in memory
  int32_t rows, columns, inputs;
  int32_t part, parts;      // columns of a part, and how many of these there are
  int32_t groups, workers;  // blocks of rows and a part; work-groups that take turns at them
  float scale, softcap, inverse_cap;  // no softcap: 0
};

// A token of each row, as integers of so many dwords.
struct TargetArg {
  const uint32_t* data;  // null: none
  int32_t dwords;
  int32_t ignored[2];  // the one of rows that count for nothing, as 64 bits
};

// Of a row and a part: maximum and sum, the logit of the target if it is there, and the sum of
// logits less the maximum.
constexpr int kStats = 4;

struct CrossEntropyParams : LogitParams {
  TargetArg target;
  float* stats;         // (parts, kStats, rows)
  float *state, *lse;   // maximum and log of the sum, (2, rows); their sum. Not wanted: null
  float *losses, *sum;  // of each row; of all, not wanted: null
  float smoothing, z_loss, sign, divisor;  // of the sum; 0: the rows that count
  int32_t sums_logits;                     // whether their sum is wanted
  // Slopes: of rows and columns of a block, which begin with p.x and p.weight.
  const float *of_p, *of_target,
      *of_all;                     // a loss' gradient is of_p P - of_target [target] - of_all
  void *slopes, *turned;           // (rows, columns) and (columns, rows), multiples of tiles
  int64_t slopes_row, turned_row;  // strides
  int32_t first, all_rows;         // column of the block; rows that state has
  float* bias_sums;                // in fp32, for rows of several blocks
  void* bias_slopes;               // of the type of x; null: not wanted
  int32_t adds;                    // to what bias_sums has
  float* logits;                   // of all columns, where they are kept; else null
  int64_t logits_row;
};

// Lists of the largest logits: of each row and part, and of each row.
struct TopKParams : LogitParams {
  float* values;         // (rows, parts, length)
  int32_t* tokens;       // likewise
  float* largest;        // (rows, k)
  uint32_t* of_largest;  // likewise, of 64 bits
  int32_t k, length;     // a multiple of kListStep
};
constexpr int kListStep = 16;

}  // namespace xeflash
