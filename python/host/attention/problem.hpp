// Checks the arrays of a request, and keeps their sizes and strides, whatever the layout and the
// framework.
#pragma once

#include <limits>

#include "attention/params.hpp"
#include "host/arrays/access.hpp"
#include "host/arrays/checks.hpp"
#include "host/attention/cache.hpp"
#include "host/attention/request.hpp"
#include "host/attention/score_mod.hpp"

namespace xeflash {

constexpr int64_t kMaxHeadDim = 576;
constexpr int64_t kMaxLength = std::numeric_limits<int32_t>::max();

// The part of a larger attention that a call computes: its positions and heads, and the arrays that
// it adds to.
struct Part {
  Array other_lse;  // without data: it is added to nothing
  int32_t q_start = 0, k_start = 0;
  Array q_starts, k_starts;  // of each sequence, without data: 0
  int32_t first_head = 0, all_heads = 0;
};

// The arrays of a request in one form: sizes and (batch, row, head) strides, whatever the layout.
struct Problem {
  Array q, k, v;
  int64_t batch = 0, heads_q = 0, heads_k = 0, sq = 0, sk = 0, d = 0, dv = 0;
  int64_t tokens_q = 0, tokens_k = 0;  // rows of the packed arrays
  Array cu_q, cu_k, used_k, bias, alibi, sinks, documents, picks, picked_spans, blocks;
  int64_t block_rows = 0, block_keys = 0;  // of a block that is listed or not
  ScoreModCall score_mod, mask_mod;
  bool packed = false;
  Part part;
  Cache cache;

  // The blocks of rows and of keys that are listed or left out; whether there are any, and whether
  // they differ between heads, or between sequences.
  int64_t row_blocks() const { return (sq + block_rows - 1) / block_rows; }
  int64_t key_blocks() const { return (sk + block_keys - 1) / block_keys; }
  bool has_blocks() const { return blocks.data || mask_mod.id != ScoreModId::kNone; }
  bool has_blocks_of_heads() const {
    return (blocks.data && blocks.shape[1] > 1) || mask_mod.reads_head;
  }
  bool has_blocks_of_sequences() const {
    return (blocks.data && blocks.shape[0] > 1) || mask_mod.reads_batch;
  }

  // Returns whether V is in 4 bits: nibbles of tile/quantised.hpp. p.dv counts its columns.
  bool has_nibbles() const { return v.dtype == DType::kU8; }
  bool writes_v_scale() const { return cache.scales_of_rows || has_nibbles(); }
  int64_t columns_of_v() const { return v.shape[v.ndim - 1]; }  // elements of a row
  // Returns the bytes of a key and its value in one head.
  int64_t bytes_per_key() const { return d * size_of(k.dtype) + columns_of_v() * size_of(v.dtype); }

  const char* k_name() const { return cache.given ? "k_cache" : "k"; }
  const char* v_name() const { return cache.given ? "v_cache" : "v"; }
  bool has_queries() const { return batch * heads_q * sq * (packed ? tokens_q : 1) != 0; }
  bool has_scores() const { return has_queries() && sk != 0; }
  Layout k_layout(Layout layout) const { return cache.given ? Layout::kBSHD : layout; }
};

Axes axes_of(Layout layout);
TensorArg tensor_arg(const Array& array, Layout layout);

// Reads a vector of `size` entries (-1: any number) on the device of q.
Array read_int32(const py::object& object, const char* name, int64_t size, const Problem& problem,
                 const Checker& check);

// Checks the arrays that new keys are written to: they share no memory.
void check_appended(const Problem& problem, const Checker& check);

// Refuses what cannot be computed with a message that names function, argument, rule and value;
// nothing has been allocated or written by then.
Problem read_problem(const FwdRequest& request);

// Returns request.out after checks, or a new array.
Array result_array(const Problem& problem, const FwdRequest& request);

// Checks that an array has the shape of the output.
void check_like_out(const Array& a, const char* name, const Problem& problem, const Checker& check);

// Checks that an array that is written is writable, has contiguous rows, and shares no memory with
// others.
void require_own_memory(const Array& a, const char* name, const Problem& problem,
                        const Checker& check);

// Returns request.residual after checks, to be written. It has no data if it is not given.
Array rest_array(const Problem& problem, const FwdRequest& request);
void check_residual(const Array& residual, const Checker& check);  // only 16 bits round

}  // namespace xeflash
