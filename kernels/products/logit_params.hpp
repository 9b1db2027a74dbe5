// The parameters that a launch passes to kernels of a language model's head.
#pragma once

#include <cstdint>

namespace xeflash {

// logits = softcap tanh(scale (x W^T + bias) / softcap), or without a softcap scale (x W^T + bias).
struct LogitParams {
  const void *x, *weight, *bias;  // (rows, inputs), (columns, inputs), (columns); no bias: null
  int64_t x_row, weight_row;      // strides
  void* kept;                     // copies of each worker's rows of x, if these are kept in memory
  int32_t rows, columns, inputs;
  int32_t part, parts;                // columns per part of the vocabulary; number of parts
  int32_t groups, workers;            // blocks of rows x parts; work-groups that take turns at them
  float scale, softcap, inverse_cap;  // no softcap: 0
};

// The target token of each row.
struct TargetArg {
  const uint32_t* data;  // null: no targets
  int32_t dwords;        // per token
  int32_t ignores;       // whether rows of a certain target do not count
  int32_t ignored[2];    // that target, as 64 bits
};

// The statistics of a row in one part of the vocabulary: the maximum m, the sum l of exp(z - m),
// the target's logit or 0 if it is in another part, and the sum of z - m.
constexpr int kStats = 4;

struct CrossEntropyParams : LogitParams {
  TargetArg target;
  float* stats;         // (parts, kStats, rows)
  float *state, *lse;   // (2, rows): m and log l; (rows): m + log l. Not wanted: null
  float *losses, *sum;  // the loss of each row; their sum. Not wanted: null
  float smoothing, z_loss, sign, divisor;  // divisor: of the sum; 0: the number of rows that count
  int32_t sums_logits;                     // whether the sums of z - m are wanted
  // The members below are for logit_slopes, where x and weight begin with the rows and columns of a
  // block.
  const float *of_p, *of_target,
      *of_all;                     // a loss' gradient is of_p P - of_target [target] - of_all
  void *slopes, *turned;           // (rows, columns); transposed; both padded to whole tiles
  int64_t slopes_row, turned_row;  // strides
  int32_t first, all_rows;         // first column of the block; rows of state
  float* bias_sums;                // the bias' gradient in fp32, summed over blocks of rows
  void* bias_slopes;               // the same in the type of x; null: not wanted
  int32_t adds;                    // whether to add to bias_sums instead of overwriting it
  float* logits;                   // logits of all columns if they are in memory; else null
  int64_t logits_row;
};

// Lists of the largest logits and their tokens: one per row and part, and the result for each row.
struct TopKParams : LogitParams {
  float* values;             // (rows, parts, length)
  int32_t* tokens;           // (rows, parts, length)
  float* largest;            // the result: (rows, k)
  uint32_t* largest_tokens;  // the tokens of the result: (rows, k), 64 bits each
  int32_t k, length;         // length: at least k, a multiple of kListStep
};
constexpr int kListStep = 16;

}  // namespace xeflash
