// The loss of a language model's head, without its logits in memory.
#pragma once

#include <pybind11/pybind11.h>

namespace xeflash {
namespace py = pybind11;

// (loss, LSE, state for the backward pass), by the names of CrossEntropyArguments in
// call/schema.py.
py::tuple linear_cross_entropy(const py::kwargs& arguments);
// (name, type, default, "") of each argument.
py::tuple linear_cross_entropy_fields();
// Gradients of input, weight and bias, None where they are not wanted.
py::tuple linear_cross_entropy_backward(const py::kwargs& arguments);

}  // namespace xeflash
