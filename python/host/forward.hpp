// The forward pass as Python asks for it: checks, description, parameters, launch.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>

#include "cache.hpp"

namespace xeflash {

// How a function's arrays are laid out.
enum class Layout : uint8_t {
  kBSHD,  // (batch, sequence, heads, dim): flash_attn_func
  kTHD,   // (tokens, heads, dim), packed sequences: flash_attn_varlen_func
  kBHSD,  // (batch, heads, sequence, dim): scaled_dot_product_attention
};

struct FwdRequest {
  std::string function;  // the public function, for messages
  Layout layout;
  pybind11::object q, k, v, out;
  pybind11::object cu_q, cu_k, used_k;
  int64_t max_q, max_k;
  pybind11::object bias, alibi, sinks;
  std::optional<double> scale;
  bool causal;
  int64_t left, right;
  bool top_left;
  double softcap, dropout;
  uint64_t seed, offset;
  bool want_lse;
  bool broadcast_heads;        // Hq != Hk needs no permission
  pybind11::object score_mod;  // see score_mod.hpp
  int64_t splits = 0;          // of the keys of one query; 0: as many as fill the device
  std::optional<double> unified_max = {};  // of the scores of one query: UnifiedMax in softmax.hpp
  CacheRequest cache = {};
};

// (out, lse); lse is None unless wanted.
pybind11::tuple forward(const FwdRequest& request);

struct Array;
struct FwdParams;
struct Problem;
enum class Algorithm : uint8_t;

// Rows that a tile can be filled with: what the tuning tables choose its height by.
uint8_t rows_for(Algorithm algorithm, const Problem& problem, bool packed_heads);

// What a launch passes to a kernel, but for results beside `out`.
FwdParams params_of(const Problem& problem, const Array& out, const FwdRequest& request);

}  // namespace xeflash
