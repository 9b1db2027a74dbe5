// How a GPU kernel reads and writes rows: see Access in kernels/xe/vec.hpp.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "checks.hpp"
#include "problem.hpp"

namespace xeflash {

enum class Access : uint8_t { kNone, kBlock2d, kDwords, kElements };  // kNone: not a GPU
const char* name_of(Access access);

// The widest access that the strides and addresses of all arrays allow on an architecture. With
// `packed_heads`, rows of Q and the output are read and written one by one.
Access access_for(const Problem& problem, const Array& out, Layout layout, bool packed_heads,
                  const std::string& arch);

// The same of single rows, of arrays in these layouts: never 2D blocks.
Access access_of_rows(std::initializer_list<std::pair<const Array*, Layout>> arrays,
                      const std::string& arch);

// A GPU reaches the rows of a tile from its first one by 32 bits. Rows of Q and the output are
// those of a head, or the heads of one query, or each has an address of its own (`packed_heads`).
void refuse_far_rows(const Problem& problem, const Array& out, Layout layout, bool decode,
                     bool packed_heads, const Checker& check);

}  // namespace xeflash
