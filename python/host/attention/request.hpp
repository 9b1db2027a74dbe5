// Reads a call of attention as Python passes it.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>

#include "host/arrays/checks.hpp"
#include "host/attention/cache.hpp"

namespace xeflash {

// The layout of a function's arrays.
enum class Layout : uint8_t {
  kBSHD,  // (batch, sequence, heads, dim): flash_attn_func
  kTHD,   // (tokens, heads, dim), packed sequences: flash_attn_varlen_func
  kBHSD,  // (batch, heads, sequence, dim): scaled_dot_product_attention
};

// The part of a larger attention that a call computes, see part.hpp.
struct PartRequest {
  py::object other_lse = py::none();  // fp32, of the other keys, whose attention is in `out`
  py::object q_start = py::none(), k_start = py::none();  // a number, or an int32 array (batch)
  int64_t first_head = 0, all_heads = 0;                  // 0: those of q
};

XF_FIELDS(PartRequest, other_lse, q_start, k_start, first_head, all_heads);

// The arguments of a call; python/xeflash/call/schema.py has the same names, types and defaults, in
// order.
struct FwdRequest {
  std::string function;  // the public function, for messages
  Layout layout = Layout::kBSHD;
  py::object q = py::none();
  py::object words = py::none();  // or a dict of these names to the caller's, for messages
  py::object k = py::none(), v = py::none(), out = py::none();
  std::optional<double> softmax_scale;
  bool causal = false;
  int64_t window_left = -1, window_right = -1;
  int64_t attention_chunk = 0;  // positions that see each other; 0: all
  bool bottom_right = true;
  double softcap = 0;
  py::object alibi_slopes = py::none(), s_aux = py::none(), attn_mask = py::none();
  py::object score_mod = py::none();                         // see score_mod.hpp
  py::object mask_mod = py::none();                          // a condition, likewise
  py::object document_ids = py::none();                      // int32, an id per position of k
  py::object picks = py::none(), picked_spans = py::none();  // int32, see picks.hpp
  py::object blocks = py::none();                            // int32, see listed.hpp
  int64_t block_rows = 0, block_keys = 0;
  double dropout_p = 0;
  uint64_t seed = 0, offset = 0;
  bool return_lse = false;
  py::object residual = py::none();   // what rounding takes from the output
  bool enable_gqa = true;             // Hq != Hk needs no permission
  int64_t num_splits = 0;             // of the keys of one query; 0: as many as fill the device
  std::optional<double> unified_max;  // of the scores of one query: UnifiedMax in softmax.hpp
  PartRequest part;
  py::object cu_seqlens_q = py::none(), cu_seqlens_k = py::none(), seqused_k = py::none();
  int64_t max_seqlen_q = 0, max_seqlen_k = 0;
  CacheRequest cache;  // if it is given, k and v are the keys to append to it
};

XF_SOME_FIELDS(FwdRequest, function, layout, q, words, k, v, out, softmax_scale, causal,
               window_left, window_right, attention_chunk, bottom_right, softcap, attn_mask,
               alibi_slopes, s_aux, score_mod, mask_mod, document_ids, picks, picked_spans, blocks,
               block_rows, block_keys, dropout_p, seed, offset, return_lse, residual, enable_gqa,
               num_splits, unified_max, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
               seqused_k);
static_assert(is_complete<2>(kFieldsOf<FwdRequest>));  // and `part`, `cache`

// Reads the arguments that Python passes; others keep FwdRequest's defaults. Raises a TypeError for
// an unknown name, and for a value of another type.
FwdRequest read_arguments(const py::kwargs& given);
// Returns (name, type, default, name in attention()) of each argument, in order.
py::tuple call_fields();

// Returns a checker whose messages have the words of the request, which must outlive it.
Checker checker_of(const FwdRequest& request);

}  // namespace xeflash
