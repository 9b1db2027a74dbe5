// How a call is shared out over its device.
#pragma once

#include "kernels.hpp"
#include "problem.hpp"

namespace xeflash {

// Rows that a tile can be filled with: what the tuning tables choose its height by.
uint8_t rows_for(const Desc& desc, const Problem& problem);

// Whether a tile takes its rows from all heads that share its keys: where queries are few. What
// differs between heads, beyond their rows and sinks, keeps them apart.
bool packs_heads(const Problem& problem, const FwdRequest& request);

// Whether tiles are too few to keep a GPU's threads busy, so that those of a group take turns at
// the keys of a tile.
bool splits_keys(const Problem& problem, const Desc& desc, const DeviceFacts& facts);

// Work-groups of decoding that have the same keys or others, for one split of them.
int64_t decode_groups(const Problem& problem, const Kernels& kernels);

// Splits of the keys of one query.
int32_t splits_for(const Problem& problem, const FwdRequest& request, const Kernels& kernels,
                   const FwdParams& params, const DeviceFacts& facts);

}  // namespace xeflash
