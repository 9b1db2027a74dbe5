// Attention by three kernels that keep S and P in memory (kernels/standard_attention.hpp): what
// FlashAttention is compared with. It waits for its results.
#pragma once

#include "host/attention/request.hpp"

namespace xeflash {

// `request` without features, results but the output, and packed sequences.
pybind11::object standard_attention(const FwdRequest& request);

}  // namespace xeflash
