// What gradients of logits are between their two products.
#pragma once

#include "cpu/left.hpp"

namespace xeflash::cpu {

template <class T>
using Slope = std::conditional_t<kPaired<T>, T, float>;

}  // namespace xeflash::cpu
