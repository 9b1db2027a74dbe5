// Reads the blocks of rows and keys that a call lists, and the condition under which a row sees
// keys: see kernels/attention/listed.hpp.
#pragma once

#include "host/attention/problem.hpp"

namespace xeflash {

// Reads request.blocks and request.mask_mod; refuses like read_problem.
void read_blocks(Problem& problem, const FwdRequest& request, const Checker& check);

// Returns the words of the bits of a head: those of blocks of rows, and the same of keys.
int64_t words_of_blocks(const Problem& problem);

}  // namespace xeflash
