// The backward pass, from Python's request to its launches.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace xeflash {

// Elements of all captures that want gradients: kernels count them, and their bytes, with 32 bits.
constexpr int64_t kMostLearned = 1 << 29;

// Takes the arguments of forward(), and its results and their gradients; gives the gradients of q,
// k, v, attn_mask, alibi_slopes and sinks, None where one is not wanted.
pybind11::tuple backward(const pybind11::kwargs& arguments);

// The names of what has gradients, in the order of backward()'s results.
pybind11::tuple learned_names();

// Takes the arguments of forward() and its LSE; gives the probabilities (B, H, Sq, Sk) in the type
// of q, negative where dropout took them.
pybind11::object probabilities(const pybind11::kwargs& arguments);

}  // namespace xeflash
