// Divides a call over its device, by the numbers that xeflash.tune has for the device.
#pragma once

#include "host/attention/desc.hpp"
#include "host/attention/problem.hpp"
#include "host/device/sizes.hpp"

namespace xeflash {

// Returns the number of rows that can fill a tile; the tuning tables choose the height of tiles by
// it.
uint8_t rows_for(const Desc& desc, const Problem& problem, const Schedule& schedule);

// Returns desc.rows, or fewer rows with which the last core ends earlier: if there are few tiles
// for the cores, lower tiles are more tiles. The bits of the result are the same, because no row
// depends on the others of its tile.
uint8_t rows_for_cores(const Desc& desc, const Problem& problem, const FwdRequest& request,
                       const Device& device);

// Returns the description of a kernel that the package carries and that can replace one that cannot
// be compiled, if there is one. Its tiles are full, each of one head, or of eight heads that share
// keys. jit/prebuilt.py has the list.
Desc stand_in_for(Desc desc, const Schedule& schedule);

// Returns the number of keys of which all pages are multiples, as far as a kernel has to know it.
uint8_t page_unit_for(const Problem& problem, const Schedule& schedule);

// Returns whether a tile has the rows of all heads that share its keys, as it does if queries are
// few. It does not if anything but rows and sinks differs between these heads.
bool packs_heads(const Problem& problem, const FwdRequest& request, const Schedule& schedule);

// Returns whether several groups divide the keys of a tile (on GPUs the threads of a group do so,
// too): because tiles are too few to keep the device busy, or because the call asks for it.
bool splits_keys(const Problem& problem, const FwdRequest& request, const Desc& desc,
                 const Device& device);

// The number of work-groups of a launch, and of splits of the keys. Splits store partial results in
// memory of this many floats, and this many groups of one thread merge them.
struct Sharing {
  int32_t splits = 1;
  bool looks_ahead = true;  // see brings_ahead in attention/cache.hpp
  uint64_t groups = 0, merging_groups = 0;
  int64_t floats = 0;
};
Sharing share_out(const Problem& problem, const FwdRequest& request, const Desc& desc,
                  const Kernels& kernels, const FwdParams& params, const Device& device);

}  // namespace xeflash
