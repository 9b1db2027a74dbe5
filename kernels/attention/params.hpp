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

// Where a cache keeps the keys and values of a sequence; all of it may be null or 0.
struct CacheArg {
  const int32_t* lengths;      // keys in use per sequence before the new ones
  const int32_t* sequences;    // which of the cache's a sequence of the batch is
  const int32_t* left_pad;     // rows of a sequence that are not keys
  const int32_t* table;        // pages of a sequence; or, per key, the sequence that holds it
  int64_t table_row;           // stride
  int32_t page;                // rows of a page
  int32_t added;               // keys that this call appends
  TensorArg k_scale, v_scale;  // fp32 per row and head of K and V: factors of quantised elements
};

// The documents that sequences are made of, see documents.hpp.
constexpr int kSpan = 64;  // positions
struct DocumentsArg {
  const int32_t* ids;          // of positions
  int32_t *least, *greatest;   // of the ids of a span
  int64_t batch, batch_spans;  // strides; 0: all sequences have the same
};

struct FwdParams {
  TensorArg q, k, v, o;
  TensorArg rest;  // of O, see rest.hpp; no data: not wanted
  CacheArg cache;
  ScoreArg bias;                // additive bias or boolean mask
  float* lse;                   // natural log; null: not wanted
  int64_t lse_batch, lse_head;  // strides, rows are contiguous
  const float* other_lse;       // adds_up: of the other keys, whose attention is in o; likewise
  const int32_t* cu_q;          // packed sequences: batch + 1 starts, null: dense
  const int32_t* cu_k;
  const int32_t* used_k;  // keys in use per sequence, null: all
  const float* sinks;     // per head: a logit that joins the softmax without a value
  const float* alibi;     // slopes, (batch x) head
  int64_t alibi_batch;
  float* partial;         // split keys: O and LSE of each split, see combine.hpp
  uint64_t seed, offset;  // dropout
  int32_t batch, heads_q, heads_k, max_q, max_k;
  int32_t left, right;       // visible keys around the diagonal; kUnbounded: no limit
  int32_t top_left;          // the diagonal starts at position 0 instead of ending at (Sq, Sk)
  int32_t q_start, k_start;  // positions of the first row and key, and what is added to
  const int32_t *q_starts, *k_starts;  // them for each sequence; null: 0
  int32_t first_head, all_heads;       // of all heads, those here begin with this one
  int32_t splits;
  float scale;    // never 0; below it only where scores have a variant
  float v_scale;  // factor of V's elements
  float softcap;
  float unified_max;    // assumed of all scores, see UnifiedMax
  float empty_lse;      // LSE of a row that sees no key
  uint32_t drop_below;  // of 2^16: dropout probability
  float keep_scale;     // 1 / (1 - dropout probability)
  DocumentsArg documents;
};

// Keys and values that are appended before attention, and the rotation of keys and queries.
struct AppendParams {
  FwdParams attention;  // of its launch; its q is what rotated queries are written to
  TensorArg q, k, v;    // (batch, tokens, heads, dim)
  TensorArg cos, sin;   // a row per position, of rotary_dim / 2
  int32_t tokens;       // work-items of a sequence
  int32_t rotated_q;    // queries to rotate, 0: none
  int32_t q_in_order;   // queries are at positions that follow each other, else all at the first
  int32_t rotary_dim, rotary_rows, interleaved;
  float k_inverse, v_inverse;  // 1 / scale of a quantised array
};

// Results of attention over different keys: (batch, rows, heads, dim) and LSE (batch, heads, rows).
struct StateArg {
  TensorArg o;
  float* lse;
  int64_t lse_batch, lse_row, lse_head;
};

constexpr int kMaxStates = 8;  // of one launch

struct MergeParams {
  StateArg states[kMaxStates];
  StateArg carried;  // fp32: what launches before this one have merged, and what this one leaves
  StateArg merged;
  int32_t count, rows, heads;
  int32_t reads_carried, leaves_carried;
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

// How many there are of what is added to scores; 1 where all share it.
struct Shares {
  int32_t batches, heads, rows, keys;
};

// The backward pass: o and lse are the forward's results. Gradients without data are not wanted.
struct BwdParams : ScoreModParams {
  TensorArg dout, dq, dk, dv;
  const float* dlse;  // gradient of the LSE, null: 0
  int64_t dlse_batch, dlse_head, dlse_row;
  ScoreArg dbias;            // null: not wanted
  Shares bias;               // of what is in dbias
  const float* given_delta;  // where it is known; else o and dlse are
  float* delta;              // per row, laid out as lse: rowsum(dO O) - dLSE
  float *base, *top;         // likewise: what its exponents are relative to, see OwnOrigin
  float unit;                // of scores and bases, in natural units
  int32_t longer;            // o and lse belong to rows of more keys than these
  float* row_slopes;         // the gradient of a slope, as far as a row goes; laid out likewise
  float* dsinks;             // per head; null: not wanted
  float* dalibi;             // (batch x) head
  int64_t dalibi_batch;
  float* query_sums;  // flash_bwd: dQ in fp32, as far as it is, of the heads of each worker
  int64_t worker_sums;
  int32_t workers;
  float* dcaptures;     // of all captures that want one, each packed; null: not wanted
  float* capture_sums;  // flash_bwd_captures: the same for each worker
  int64_t captured;     // elements of them
  int32_t capture_workers;
  int32_t first_of_capture[kMaxCapturedArrays];  // of arrays
};

// The forward's probabilities, made again from its LSE: (batch, head, row, key).
struct ProbsParams : ScoreModParams {
  TensorArg probabilities;
};

// Standard attention keeps scores and probabilities in memory: (batch, head, row, key), in fp32 and
// in the type of Q.
struct StandardParams : FwdParams {
  TensorArg scores, probabilities;
};

}  // namespace xeflash
