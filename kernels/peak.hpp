// The peaks of a device, for benchmarks: multiply_peak repeats the product of a register tile and
// reads no memory; read_peak reads memory or a cache and computes nothing with what it reads.
#pragma once

#include "attention/params.hpp"
#include "tile/tile.hpp"

namespace xeflash {

template <class Config>
XF_INLINE void multiply_peak(const FwdParams& p) {
  static_cast<float*>(p.o.data)[Group::index()] =
      multiply_in_registers<typename Config::Element>(p.max_q, p.scale);
}

// Each work-item reads max_k bytes of its own, max_q times; a small max_k stays in its cache.
template <class Config>
XF_INLINE void read_peak(const FwdParams& p) {
  const auto* own = static_cast<const char*>(p.q.data) + Group::index() * int64_t{p.max_k};
  static_cast<float*>(p.o.data)[Group::index()] = read_often(own, p.max_k, p.max_q);
}

}  // namespace xeflash
