// Reads the tree of guesses of a call on a cache: which nodes each row of q sees.
#pragma once

#include "host/arrays/array.hpp"

namespace xeflash {

struct FwdRequest;
struct Problem;

// The words of rows of nodes, one after the other.
struct TreeRows {
  Array words;              // (rows, words of a row); without data: not given
  int64_t of_sequence = 0;  // rows; 0: they are those of packed queries
  bool is_shared = false;   // all sequences have the first ones
};

constexpr int64_t kMostNodes = 1024;

// Reads request.cache.tree_mask; refuses like read_problem.
TreeRows read_tree(const Problem& problem, const FwdRequest& request, const Checker& check);

}  // namespace xeflash
