// How a call is shared out over its device, by the numbers of xeflash.tune for it.
#pragma once

#include "host/attention/desc.hpp"
#include "host/attention/problem.hpp"
#include "host/device/sizes.hpp"

namespace xeflash {

// Rows that a tile can be filled with: what the tuning tables choose its height by.
uint8_t rows_for(const Desc& desc, const Problem& problem, const Schedule& schedule);

// Those of desc.rows, or fewer, with which the last core ends first: where tiles are few for the
// cores, lower ones are more. All give the same bits, as no row depends on others of its tile.
uint8_t rows_for_cores(const Desc& desc, const Problem& problem, const FwdRequest& request,
                       const Device& device);

// What the package has in the place of kernels that cannot be compiled, if anything: of full tiles,
// each of a head, or of eight heads that share keys. jit/prebuilt.py has the list.
Desc stand_in_for(Desc desc, const Schedule& schedule);

// The keys that pages are multiples of, as far as a kernel has to know.
uint8_t page_unit_for(const Problem& problem, const Schedule& schedule);

// Whether a tile takes its rows from all heads that share its keys: where queries are few. What
// differs between heads, beyond their rows and sinks, keeps them apart.
bool packs_heads(const Problem& problem, const FwdRequest& request, const Schedule& schedule);

// Whether tiles are too few to keep a device busy, so that groups share out the keys of a tile, and
// on GPUs the threads of a group, too; or whether a call asks for it.
bool splits_keys(const Problem& problem, const FwdRequest& request, const Desc& desc,
                 const Device& device);

// The work-groups of a launch, and the splits of the keys that they are for. Splits leave what is
// to be merged, by as many groups of one thread, in memory of so many floats.
struct Sharing {
  int32_t splits = 1;
  bool looks_ahead = true;  // see brings_ahead in attention/cache.hpp
  uint64_t groups = 0, merging_groups = 0;
  int64_t floats = 0;
};
Sharing share_out(const Problem& problem, const FwdRequest& request, const Desc& desc,
                  const Kernels& kernels, const FwdParams& params, const Device& device);

}  // namespace xeflash
