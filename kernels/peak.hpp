// The arithmetic peak of a device, for benchmarks: a product's register tile over and over, nothing
// from memory.
#pragma once

#include "attention/cache.hpp"
#include "attention/dropout.hpp"
#include "attention/variant.hpp"  // a Config names them

namespace xeflash {

template <class Config>
XF_INLINE void peak(const FwdParams& p) {
  static_cast<float*>(p.o.data)[group_index()] =
      multiply_in_registers<typename Config::Element>(p.max_q, p.scale);
}

}  // namespace xeflash
