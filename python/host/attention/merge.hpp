// merge_states as Python asks for it.
#pragma once

#include <pybind11/pybind11.h>

namespace xeflash {

// (out, LSE) of states given as lists of their results, (batch, rows, heads, dim) or (rows, heads,
// dim), and of their LSE, (batch, heads, rows) or (heads, rows).
pybind11::tuple merge_states(const pybind11::list& outs, const pybind11::list& lses);

}  // namespace xeflash
