// These errors have other names in Python than in C++.
#pragma once

#include <pybind11/pybind11.h>

namespace xeflash {
namespace py = pybind11;

struct NotImplemented : py::builtin_exception {
  using builtin_exception::builtin_exception;
  void set_error() const override { PyErr_SetString(PyExc_NotImplementedError, what()); }
};

}  // namespace xeflash
