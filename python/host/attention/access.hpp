// Chooses how kernels of attention read and write the rows of a call's arrays.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "host/arrays/access.hpp"
#include "host/attention/problem.hpp"

namespace xeflash {

// The rows of a tile of Q and of the output: they are the queries of a head, the heads of one query
// (decode), or rows that have an address each and are read and written one by one (packed heads).
enum class QueryRows : uint8_t { kOfHead, kOfQuery, kApart };

// Arrays beside q, k and v, with the columns of a head. Arrays without data are passed over.
using Others = std::initializer_list<std::pair<const Array*, int64_t>>;

// Returns the widest access that the strides and addresses of q, k, v and of other arrays, which
// are laid out as q or as k, allow on an architecture.
Access access_for(const Problem& problem, Others like_q, Others like_k, Layout layout,
                  QueryRows query_rows, const std::string& arch);

// Returns the widest access to single rows of arrays in these layouts. It is never 2D blocks.
Access access_of_rows(std::initializer_list<std::pair<const Array*, Layout>> arrays,
                      const std::string& arch);

// Refuses rows that are too far apart: a GPU adds 32 bits to the address of a tile's first row,
// unless each row has an address. `like_q` has arrays that are laid out as q, and their names.
void refuse_far_rows(const Problem& problem,
                     std::initializer_list<std::pair<const Array*, const char*>> like_q,
                     Layout layout, QueryRows query_rows, const Checker& check);

// Refuses keys that are too far apart: a GPU adds 32 bits to the address of the first key of a
// vector of scores.
void check_mask_strides(const Problem& problem, const Checker& check);

}  // namespace xeflash
