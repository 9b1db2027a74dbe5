// Products of few rows with weights.
#pragma once

#include <pybind11/pybind11.h>

namespace xeflash {
namespace py = pybind11;

// x W^T + bias, by the names of LinearArguments in call/schema.py.
py::object linear(const py::kwargs& arguments);
// (name, type, default, "") of each argument.
py::tuple linear_fields();

}  // namespace xeflash
