// The arithmetic peak of a device, for benchmarks: a product's register tile over and over, nothing
// from memory.
#pragma once

#include "attention/params.hpp"
#include "tile/tile.hpp"

namespace xeflash {

template <class Config>
XF_INLINE void peak(const FwdParams& p) {
  static_cast<float*>(p.o.data)[group_index()] =
      multiply_in_registers<typename Config::Element>(p.max_q, p.scale);
}

}  // namespace xeflash
