// The types that a Config names: layouts of keys and values, windows, dropout, changes to scores
// and kinds of softmax. Other masks have files of their own, which kernels that have them include.
#pragma once

#include "attention/cache.hpp"
#include "attention/dropout.hpp"
#include "attention/mask.hpp"
#include "attention/softmax.hpp"
#include "attention/variant.hpp"
