// The type in which gradients of logits are stored, until dx and dW are computed from them.
#pragma once

#include "xe/vec.hpp"

namespace xeflash::xe {

template <class T>
using Slope = T;

}  // namespace xeflash::xe
