// Reads calls that are a part of a larger attention: positions, heads, and arrays that they add to.
#pragma once

#include "host/attention/problem.hpp"

namespace xeflash {

// Fills problem.part; refuses like read_problem.
void read_part(Problem& problem, const FwdRequest& request, const Checker& check);

// Reads a float32 array of the shape of the LSE, with any strides or packed.
Array read_like_lse(const py::object& object, const char* name, const Problem& problem,
                    const Checker& check);
Array read_lse(const py::object& object, const char* name, const Problem& problem,
               const Checker& check);

// Reads a float32 array of the shape of `like`, which gradients are added to.
Array read_sum(const py::object& object, const char* name, const Array& like, const char* like_name,
               const Problem& problem, const Checker& check);

// Refuses an argument beside chunks, or in a call that is a part.
void require_no_part(const char* name, const FwdRequest& request, const Checker& check);
[[noreturn]] void refuse_array(const char* name, const std::string& other, const Checker& check);

}  // namespace xeflash
