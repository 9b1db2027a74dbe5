// What of a device decides how many groups are on it at the same time, and what its caches hold.
#pragma once

#include <cstdint>

namespace xesim {

struct Chip {
  const void* device = nullptr;  // whose L2 it is
  uint32_t cores = 1;
  uint64_t l2_bytes = 0;
  uint64_t l1_bytes = 0;     // of an Xe-core
  uint64_t slm_bytes = 0;    // of an Xe-core, for all groups on it
  bool slm_is_in_l1 = true;  // what groups have of it, the L1 lacks
};

}  // namespace xesim
