// The arguments of forward(), by name.
#pragma once

#include <pybind11/pybind11.h>

#include "host/attention/request.hpp"

namespace xeflash {

// Reads what Python passes; what is not given has FwdRequest's own default. Raises a TypeError for
// a name that is not known, and for a value of another type.
FwdRequest read_arguments(const pybind11::kwargs& given);

// (name, type, default, name in attention()) of each, in order.
pybind11::tuple call_fields();

}  // namespace xeflash
