// How kernels of attention read and write the rows of a call's arrays.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "host/arrays/access.hpp"
#include "host/attention/problem.hpp"

namespace xeflash {

// The rows of a tile of Q and of the output: those of a head, the heads of one query (decode), or
// each has an address of its own, and is read and written by itself (packed heads).
enum class QueryRows : uint8_t { kOfHead, kOfQuery, kApart };

// Arrays beside q, k and v, with the columns of a head; those without data are passed over.
using Others = std::initializer_list<std::pair<const Array*, int64_t>>;

// The widest access that the strides and addresses of all arrays allow on an architecture: of q, k,
// v, and of others that are laid out as q and as k.
Access access_for(const Problem& problem, Others like_q, Others like_k, Layout layout,
                  QueryRows query_rows, const std::string& arch);

// The same of single rows, of arrays in these layouts: never 2D blocks.
Access access_of_rows(std::initializer_list<std::pair<const Array*, Layout>> arrays,
                      const std::string& arch);

// A GPU reaches the rows of a tile from its first one by 32 bits, unless they are apart. `like_q`:
// arrays that are laid out as q, and their names.
void refuse_far_rows(const Problem& problem,
                     std::initializer_list<std::pair<const Array*, const char*>> like_q,
                     Layout layout, QueryRows query_rows, const Checker& check);

// A GPU reaches the keys of a vector of scores by 32 bits.
void check_mask_strides(const Problem& problem, const Checker& check);

}  // namespace xeflash
