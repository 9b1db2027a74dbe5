// The type in which gradients of logits are stored, until dx and dW are computed from them: T where
// pairs of T are multiplied as they are, else fp32.
#pragma once

#include "cpu/left.hpp"

namespace xeflash::cpu {

template <class T>
using Slope = std::conditional_t<kPaired<T>, T, float>;

}  // namespace xeflash::cpu
