// The largest logits of a language model's head.
#pragma once

#include <pybind11/pybind11.h>

namespace xeflash {
namespace py = pybind11;

// (values, tokens), by the names of TopKArguments in call/schema.py.
py::tuple linear_top_k(const py::kwargs& arguments);
// (name, type, default, "") of each argument.
py::tuple linear_top_k_fields();

}  // namespace xeflash
