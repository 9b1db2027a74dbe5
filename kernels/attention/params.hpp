// The parameters that a launch passes to a kernel: plain data, the same bytes on the host and on
// every device.
#pragma once

#include <cstdint>

namespace xeflash {

// A (batch, sequence, head, dim) array; strides in elements, that of dim is 1. Packed sequences
// have a batch stride of 0.
struct TensorArg {
  void* data;
  int64_t batch, row, head;
};

// An array in the shape of the scores; a stride of 0 broadcasts.
struct ScoreArg {
  const void* data;
  int64_t batch, head, row, col;
};

// Scales of quantised rows, in fp32: one per row and head of a cache, or per sequence and head of a
// call. A stride of 0 shares them.
struct ScaleArg : TensorArg {
  int64_t sequence;  // stride of the call's sequences
};

// The tables by which a cache keeps the keys and values of a sequence; any member may be null or 0.
struct CacheArg {
  const int32_t* lengths;     // keys in use per sequence, without those that the call appends
  const int32_t* sequences;   // the cache's sequence for each sequence of the batch
  const int32_t* left_pad;    // rows before the first key of each sequence
  const int32_t* table;       // pages of a sequence; or, per key, the sequence that holds it
  int64_t table_row;          // stride of a sequence's entries
  int32_t page;               // rows per page
  int32_t added;              // keys that this call appends
  ScaleArg k_scale, v_scale;  // of quantised elements
};

constexpr int kSpan = 64;  // positions per span

// The keys that are picked for rows, see picks.hpp.
constexpr int kWord = 32;  // keys per word of bits
struct PicksArg {
  const int32_t *rows, *spans;
  int64_t batch, batch_spans;  // strides; 0: all sequences have the same
};

// The documents of a sequence, see documents.hpp.
struct DocumentsArg {
  const int32_t* ids;          // one per position
  int32_t *least, *greatest;   // the least and the greatest id of each span
  int64_t batch, batch_spans;  // strides; 0: all sequences have the same ids
};

// The nodes that each row of a tree of guesses sees, see tree.hpp.
struct TreeArg {
  const int32_t* words;  // one bit per node
  int64_t batch;         // stride; 0: all sequences have the same tree, or rows are packed
  int32_t words_of_row;
  int32_t of_packed_rows;  // rows are those of packed sequences
};

// The blocks of rows and keys that rows see, see listed.hpp.
struct BlocksArg {
  int32_t* bits;                 // by rows: listed, full; by keys: listed, full
  int32_t* kinds;                // by rows, one per block, of which mask_blocks.hpp makes the bits
  int64_t batch, head;           // strides of bits; 0: shared
  int32_t row_shift, key_shift;  // log2 of the rows and keys of a block
  int32_t rows, keys;            // blocks
};

struct FwdParams {
  TensorArg q, k, v, o;
  TensorArg residual;  // what rounding takes from O, see residual.hpp; no data: not wanted
  CacheArg cache;
  ScoreArg bias;                // additive bias or boolean mask
  float* lse;                   // natural log; null: not wanted
  int64_t lse_batch, lse_head;  // strides; rows are contiguous
  const float* other_lse;       // adds_up: LSE of the other keys, whose output is in o; as lse
  const int32_t* cu_q;          // packed sequences: batch + 1 starts, null: dense
  const int32_t* cu_k;
  const int32_t* used_k;  // keys in use per sequence, null: all
  const float* sinks;     // per head: a logit that joins the softmax without a value
  const float* alibi;     // slopes, per head or per batch and head
  int64_t alibi_batch;    // stride; 0: per head
  float* partial;         // split keys: O, m and l of each split, see partial.hpp
  uint64_t seed, offset;  // dropout
  int32_t batch, heads_q, heads_k, max_q, max_k;
  int32_t left, right;       // visible keys around the diagonal; kUnbounded: no limit
  int32_t top_left;          // the diagonal starts at position 0 instead of ending at (Sq, Sk)
  int32_t chunk;             // positions of a chunk, see chunks.hpp
  int32_t q_start, k_start;  // positions of the first row and key
  const int32_t *q_starts, *k_starts;  // added to them, per sequence; null: 0
  int32_t first_head, all_heads;       // index of the first head here among all heads
  int32_t splits;
  int32_t looks_ahead;  // see brings_ahead in cache.hpp
  float scale;          // never 0; negative only if scores have a variant
  float v_scale;        // factor of V's elements
  float softcap;
  float unified_max;    // the maximum that is assumed for all scores, see UnifiedMax
  float empty_lse;      // LSE of a row that sees no key
  uint32_t drop_below;  // dropout probability x 2^16
  float keep_scale;     // 1 / (1 - dropout probability)
  DocumentsArg documents;
  PicksArg picks;
  TreeArg tree;
  BlocksArg blocks;
};

// Keys and values that are appended before attention, and the rotation of keys and queries.
struct AppendParams {
  FwdParams attention;  // of the attention launch; rotated queries are written to its q
  TensorArg q, k, v;    // (batch, tokens, heads, dim)
  TensorArg cos, sin;   // one row of rotary_dim / 2 elements per position
  int32_t tokens;       // work-items per sequence
  int32_t rotated_q;    // queries to rotate, 0: none
  int32_t q_in_order;   // queries are at consecutive positions; else all at the first one's
  int32_t rotary_dim, rotary_rows, interleaved;
  const int32_t* positions;    // by which tokens are rotated; null: they follow the cache's keys
  int64_t position_batch;      // stride
  int32_t finds_scales;        // new rows get scales of their own; else their scales are given
  float k_inverse, v_inverse;  // 1 / scale of a quantised K and V
};

// Keys and values, (tokens, heads, dim), that are written to slots of a cache.
struct WriteParams {
  TensorArg k, v, k_cache, v_cache;
  ScaleArg k_scale, v_scale;  // per row and head of the cache, or per token and head
  const void* slots;          // int64 (wide_slots) or int32
  int32_t wide_slots, page, capacity, heads;
  int32_t finds_scales;        // as in AppendParams
  float k_inverse, v_inverse;  // as in AppendParams
};

// Results of attention over different keys: (batch, rows, heads, dim) and LSE (batch, heads, rows).
struct StateArg {
  TensorArg o;
  float* lse;
  int64_t lse_batch, lse_row, lse_head;
};

constexpr int kMaxStates = 8;  // per launch

struct MergeParams {
  StateArg states[kMaxStates];
  StateArg carried;  // fp32: read if earlier launches merged some states, written for later ones
  StateArg merged;
  int32_t count, rows, heads;
  int32_t reads_carried, leaves_carried;
};

constexpr int32_t kUnbounded = 0x7fffffff;

// The arrays and numbers that a score_mod or mask_mod captured, see score_mod.hpp.
constexpr int kMaxCapturedArrays = 8, kMaxCapturedNumbers = 8, kMaxCapturedRank = 4;
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
  Captures captures, mask_captures;
};

// Extent, along each axis, of a term that is added to scores; 1 means broadcast.
struct Extents {
  int32_t batches, heads, rows, keys;
};

// The parameters of the backward pass; o and lse are the forward's results. A gradient without data
// is not wanted.
struct BwdParams : ScoreModParams {
  TensorArg dout, dq, dk, dv;
  const float* dlse;  // gradient of the LSE, null: 0
  int64_t dlse_batch, dlse_head, dlse_row;
  ScoreArg dbias;            // null: not wanted
  Extents bias;              // the shape of dbias
  const float* given_delta;  // Delta, if the caller knows it; else null, and o and dlse give it
  float* delta;              // per row, laid out as lse: rowsum(dO O) - dLSE
  float *base, *top;         // per row, laid out as lse: origins of exponents, see origin.hpp
  float unit;                // of scores and bases, in natural units
  int32_t longer;            // o and lse belong to rows of more keys than these
  float* row_slopes;         // per row, laid out as lse: its part of the gradient of a slope
  float* dsinks;             // per head; null: not wanted
  float* dalibi;             // per head or per batch and head; null: not wanted
  int64_t dalibi_batch;      // stride; 0: per head
  float* query_sums;         // flash_bwd: partial sums of dQ in fp32, per worker
  int64_t worker_sums;       // stride of query_sums
  int32_t workers;
  float* dcaptures;     // the wanted gradients of captures, packed one after the other; or null
  float* capture_sums;  // flash_bwd_captures: a copy of these per worker
  int64_t captured;     // elements of dcaptures
  int32_t capture_workers;
  int32_t first_of_capture[kMaxCapturedArrays];  // where each array's gradient begins
};

// The forward's probabilities, recomputed from its LSE: (batch, head, row, key).
struct ProbsParams : ScoreModParams {
  TensorArg probabilities;
};

// Standard attention keeps scores and probabilities in memory: (batch, head, row, key), in fp32 and
// in the type of Q.
struct StandardParams : FwdParams {
  TensorArg scores, probabilities;
};

}  // namespace xeflash
