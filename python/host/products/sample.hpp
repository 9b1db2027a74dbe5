// Tokens that are drawn from logits.
#pragma once

#include <pybind11/pybind11.h>

namespace xeflash {
namespace py = pybind11;

// By the names of SampleArguments in call/schema.py.
py::object sample(const py::kwargs& arguments);
// (name, type, default, "") of each argument.
py::tuple sample_fields();

}  // namespace xeflash
