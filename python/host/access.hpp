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

// The rows of a tile of Q and of the output: those of a head, the heads of one query (decode), or
// each has an address of its own, and is read and written by itself (packed heads).
enum class QueryRows : uint8_t { kOfHead, kOfQuery, kApart };

// The widest access that the strides and addresses of all arrays allow on an architecture.
Access access_for(const Problem& problem, const Array& out, Layout layout, QueryRows query_rows,
                  const std::string& arch);

// The same of single rows, of arrays in these layouts: never 2D blocks.
Access access_of_rows(std::initializer_list<std::pair<const Array*, Layout>> arrays,
                      const std::string& arch);

// A GPU reaches the rows of a tile from its first one by 32 bits, unless they are apart.
void refuse_far_rows(const Problem& problem, const Array& out, Layout layout, QueryRows query_rows,
                     const Checker& check);

}  // namespace xeflash
