// What Python calls of attention, each from a request to its launches.
#pragma once

#include <pybind11/pybind11.h>

#include "host/attention/request.hpp"

namespace xeflash {

// (out, lse); lse is None unless wanted.
py::tuple forward(const FwdRequest& request);

// Elements of all captures that want gradients: kernels count them, and their bytes, with 32 bits.
constexpr int64_t kMostLearned = 1 << 29;

// Takes the arguments of forward(), and its results and their gradients; gives the gradients of q,
// k, v, attn_mask, alibi_slopes and sinks, None where one is not wanted.
py::tuple backward(const py::kwargs& arguments);
// The names of what has gradients, in the order of backward()'s results.
py::tuple learned_names();

// Takes the arguments of forward() and its LSE; gives the probabilities (B, H, Sq, Sk) in the type
// of q, negative where dropout took them.
py::object probabilities(const py::kwargs& arguments);

// Attention by three kernels that keep S and P in memory (kernels/standard_attention.hpp): what
// FlashAttention is compared with. It waits for its results. `request` is without features, results
// but the output, and packed sequences.
py::object standard_attention(const FwdRequest& request);

// (out, LSE) of states given as lists of their results, (batch, rows, heads, dim) or (rows, heads,
// dim), and of their LSE, (batch, heads, rows) or (heads, rows).
py::tuple merge_states(const py::list& outs, const py::list& lses);

}  // namespace xeflash
