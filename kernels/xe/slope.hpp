// What gradients of logits are between their two products.
#pragma once

#include "xe/vec.hpp"

namespace xeflash::xe {

template <class T>
using Slope = T;

}  // namespace xeflash::xe
