// A call of attention as Python asks for it.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <tuple>

#include "host/arrays/checks.hpp"
#include "host/attention/cache.hpp"

namespace xeflash {

// How a function's arrays are laid out.
enum class Layout : uint8_t {
  kBSHD,  // (batch, sequence, heads, dim): flash_attn_func
  kTHD,   // (tokens, heads, dim), packed sequences: flash_attn_varlen_func
  kBHSD,  // (batch, heads, sequence, dim): scaled_dot_product_attention
};

// Which part of a larger attention it is, see part.hpp.
struct PartRequest {
  py::object other_lse = py::none();  // fp32, of the other keys, whose attention is in `out`
  py::object q_start = py::none(), k_start = py::none();  // a number, or an int32 array (batch)
  int64_t first_head = 0, all_heads = 0;                  // 0: those of q
};

XF_FIELDS(PartRequest, other_lse, q_start, k_start, first_head, all_heads);

// Its arguments; python/xeflash/call/schema.py has the same names, types and defaults, in order.
struct FwdRequest {
  std::string function;  // the public function, for messages
  Layout layout = Layout::kBSHD;
  py::object q = py::none();
  py::object words = py::none();  // or a dict of these names to the caller's, for messages
  py::object k = py::none(), v = py::none(), out = py::none();
  std::optional<double> scale;
  bool causal = false;
  int64_t left = -1, right = -1;
  int64_t chunk = 0;  // positions that see each other; 0: all
  bool bottom_right = true;
  double softcap = 0;
  py::object alibi = py::none(), sinks = py::none(), bias = py::none();
  py::object score_mod = py::none();                         // see score_mod.hpp
  py::object documents = py::none();                         // int32, an id per position of k
  py::object picks = py::none(), picked_spans = py::none();  // int32, see picks.hpp
  double dropout = 0;
  uint64_t seed = 0, offset = 0;
  bool want_lse = false;
  py::object rest = py::none();       // of the output: written, or read by the backward pass
  bool broadcast_heads = true;        // Hq != Hk needs no permission
  int64_t splits = 0;                 // of the keys of one query; 0: as many as fill the device
  std::optional<double> unified_max;  // of the scores of one query: UnifiedMax in softmax.hpp
  PartRequest part;
  py::object cu_q = py::none(), cu_k = py::none(), used_k = py::none();
  int64_t max_q = 0, max_k = 0;
  CacheRequest cache;  // if it is given, k and v are the keys to append to it
};

constexpr std::tuple kCallFields{
    Field{"function", &FwdRequest::function},
    Field{"layout", &FwdRequest::layout},
    Field{"q", &FwdRequest::q, "query"},
    Field{"words", &FwdRequest::words},
    Field{"k", &FwdRequest::k, "key"},
    Field{"v", &FwdRequest::v, "value"},
    Field{"out", &FwdRequest::out},
    Field{"softmax_scale", &FwdRequest::scale, "scale"},
    Field{"causal", &FwdRequest::causal, "is_causal"},
    Field{"window_left", &FwdRequest::left},
    Field{"window_right", &FwdRequest::right},
    Field{"attention_chunk", &FwdRequest::chunk},
    Field{"bottom_right", &FwdRequest::bottom_right},
    Field{"softcap", &FwdRequest::softcap},
    Field{"attn_mask", &FwdRequest::bias},
    Field{"alibi_slopes", &FwdRequest::alibi},
    Field{"s_aux", &FwdRequest::sinks, "sinks"},
    Field{"score_mod", &FwdRequest::score_mod},
    Field{"document_ids", &FwdRequest::documents},
    Field{"picks", &FwdRequest::picks},
    Field{"picked_spans", &FwdRequest::picked_spans},
    Field{"dropout_p", &FwdRequest::dropout},
    Field{"seed", &FwdRequest::seed},
    Field{"offset", &FwdRequest::offset},
    Field{"return_lse", &FwdRequest::want_lse},
    Field{"rest", &FwdRequest::rest},
    Field{"enable_gqa", &FwdRequest::broadcast_heads},
    Field{"num_splits", &FwdRequest::splits},
    Field{"unified_max", &FwdRequest::unified_max},
    Field{"cu_seqlens_q", &FwdRequest::cu_q},
    Field{"cu_seqlens_k", &FwdRequest::cu_k},
    Field{"max_seqlen_q", &FwdRequest::max_q},
    Field{"max_seqlen_k", &FwdRequest::max_k},
    Field{"seqused_k", &FwdRequest::used_k},
};
static_assert(is_complete<2>(kCallFields));  // and `part`, `cache`

// Words messages with those of the request.
Checker checker_of(const FwdRequest& request);

}  // namespace xeflash
