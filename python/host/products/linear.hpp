// Computes products of few rows with weights.
#pragma once

#include <string>

#include "host/arrays/checks.hpp"
#include "host/device/fields.hpp"

namespace xeflash {

// The arguments of a call: LinearArguments in call/schema.py has the same.
struct LinearRequest {
  std::string function = "linear";
  py::object x = py::none(), weight = py::none(), bias = py::none();
  py::object scales = py::none(), zeros = py::none();
  int64_t group = 0;  // 0: all inputs
  bool wide = false;  // the result is in fp32
};
XF_FIELDS(LinearRequest, function, x, weight, bias, scales, zeros, group, wide);

// Returns x W^T + bias.
py::object linear(const LinearRequest& request, const Checker& check);

}  // namespace xeflash
