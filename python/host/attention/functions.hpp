// The functions of attention that Python calls; each goes from a request to its launches.
#pragma once

#include <pybind11/pybind11.h>

#include "host/attention/request.hpp"

namespace xeflash {

// Returns (out, lse); lse is None unless it is wanted.
py::tuple forward(const FwdRequest& request);

// The largest number of elements of all captures whose gradients are wanted: kernels count them,
// and their bytes, with 32 bits.
constexpr int64_t kMostLearned = 1 << 29;

// Takes the arguments of forward(), and its results and their gradients; gives the gradients of q,
// k, v, attn_mask, alibi_slopes and sinks, None where one is not wanted.
py::tuple backward(const py::kwargs& arguments);
// Returns the names of the arrays that have gradients, in the order of backward()'s results.
py::tuple learned_names();

// Takes the arguments of forward() and its LSE; gives the probabilities (B, H, Sq, Sk) in the type
// of q, negative where dropout took them.
py::object probabilities(const py::kwargs& arguments);

// Computes attention by three kernels that keep S and P in memory (kernels/standard_attention.hpp),
// for comparison with FlashAttention. It waits for its results. `request` has no features, no
// result but the output, and no packed sequences.
py::object standard_attention(const FwdRequest& request);

// Returns (out, LSE) of states, which are lists of results (batch, rows, heads, dim) or (rows,
// heads, dim), and of their LSE (batch, heads, rows) or (heads, rows).
py::tuple merge_states(const py::list& outs, const py::list& lses);

}  // namespace xeflash
