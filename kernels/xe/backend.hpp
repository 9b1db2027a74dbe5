// Xe GPUs as a backend of the tile vocabulary: one ESIMD thread owns Br rows, dpas multiplies, 2D
// block messages move.
#pragma once

#include "xe/dropout.hpp"
#include "xe/gather.hpp"
#include "xe/mma.hpp"

namespace xeflash {
using namespace xe;
}
