// Whether strided arrays have elements in the same memory.
#pragma once

#include "host/arrays/array.hpp"

namespace xeflash {

// Decided exactly for arrays as slicing, transposing and expanding leave them; of others that are
// too hard to tell, true.
bool overlap(const Array& a, const Array& b);

// Whether two elements of an array do.
bool overlaps_itself(const Array& a);

}  // namespace xeflash
