// The backward pass, from Python's request to its launches.
#pragma once

#include <pybind11/pybind11.h>

namespace xeflash {

// Takes the arguments of forward(), and its results and their gradients; gives the gradients of q,
// k, v, attn_mask, alibi_slopes and sinks, None where one is not wanted.
pybind11::tuple backward(const pybind11::kwargs& arguments);

}  // namespace xeflash
