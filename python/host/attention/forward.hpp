// The forward pass, from Python's request to its launches.
#pragma once

#include <pybind11/pybind11.h>

#include "host/attention/request.hpp"

namespace xeflash {

// (out, lse); lse is None unless wanted.
pybind11::tuple forward(const FwdRequest& request);

}  // namespace xeflash
