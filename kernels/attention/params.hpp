// What a launch passes to a kernel: plain data, the same bytes for the host and every device.
#pragma once

#include <cstdint>

namespace xeflash {

// A (batch, sequence, head, dim) array; strides in elements, the last one is 1. Packed sequences
// have batch = 0.
struct TensorArg {
  void* data;
  int64_t batch, row, head;
};

// A score-shaped array; a stride of 0 broadcasts.
struct ScoreArg {
  const void* data;
  int64_t batch, head, row, col;
};

struct FwdParams {
  TensorArg q, k, v, o;
  ScoreArg bias;                // additive bias or boolean mask
  float* lse;                   // natural log; null: not wanted
  int64_t lse_batch, lse_head;  // strides, rows are contiguous
  const int32_t* cu_q;          // packed sequences: batch + 1 starts, null: dense
  const int32_t* cu_k;
  const int32_t* used_k;  // keys in use per sequence, null: all
  const float* sinks;     // per head: a logit that joins the softmax without a value
  const float* alibi;     // slopes, (batch x) head
  int64_t alibi_batch;
  float* partial;         // split keys: O and LSE of each split, see combine.hpp
  uint64_t seed, offset;  // dropout
  int32_t batch, heads_q, heads_k, max_q, max_k;
  int32_t left, right;  // visible keys around the diagonal; kUnbounded: no limit
  int32_t top_left;     // the diagonal starts at (0, 0) instead of ending at (Sq, Sk)
  int32_t splits;
  float scale;  // of either sign, never 0
  float softcap;
  float empty_lse;      // LSE of a row that sees no key
  uint32_t drop_below;  // of 2^16: dropout probability
  float keep_scale;     // 1 / (1 - dropout probability)
};

constexpr int32_t kUnbounded = 0x7fffffff;

// What a user's change to scores reads, see score_mod.hpp.
constexpr int kMaxCapturedArrays = 4, kMaxCapturedNumbers = 8, kMaxCapturedRank = 4;
struct CapturedArray {
  const void* data;
  int32_t stride[kMaxCapturedRank];  // elements; the array spans less than 2 GiB
  int32_t size[kMaxCapturedRank];
};
struct Captures {
  CapturedArray arrays[kMaxCapturedArrays];
  union {
    float real;
    int32_t integer;
  } numbers[kMaxCapturedNumbers];
};
struct ScoreModParams : FwdParams {
  Captures captures;
};

// Standard attention keeps scores and probabilities in memory: (batch, head, row, key), in fp32 and
// in the type of Q.
struct StandardParams : FwdParams {
  TensorArg scores, probabilities;
};

}  // namespace xeflash
