// How a GPU kernel reads and writes rows: see Access in kernels/xe/vec.hpp.
#pragma once

#include <string>

#include "problem.hpp"

namespace xeflash {

enum class Access : uint8_t { kNone, kBlock2d, kDwords, kElements };  // kNone: not a GPU
const char* name_of(Access access);

// The widest access that the strides and addresses of all arrays allow on an architecture. With
// `packed_heads`, rows of Q and the output are read and written one by one.
Access access_for(const Problem& problem, const Array& out, Layout layout, bool packed_heads,
                  const std::string& arch);

}  // namespace xeflash
