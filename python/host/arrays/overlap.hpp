// Finds out whether strided arrays have elements in the same memory.
#pragma once

#include "host/arrays/array.hpp"

namespace xeflash {

// Returns whether two arrays share memory. The answer is exact for arrays that slicing, transposing
// and expanding make; it is true for others that are too hard to tell.
bool overlap(const Array& a, const Array& b);

// Returns whether two elements of an array share memory.
bool overlaps_itself(const Array& a);

}  // namespace xeflash
