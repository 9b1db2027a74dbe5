// Products of matrices whose rows become their softmax.
#pragma once

#include <pybind11/pybind11.h>

namespace xeflash {
namespace py = pybind11;

// softmax(scale A B^T + bias), by the names of MatmulSoftmaxArguments in call/schema.py.
py::object matmul_softmax(const py::kwargs& arguments);
// (name, type, default, "") of each argument.
py::tuple matmul_softmax_fields();

}  // namespace xeflash
