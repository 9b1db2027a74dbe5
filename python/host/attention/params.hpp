// The parameters that a launch passes to a kernel of attention.
#pragma once

#include "host/arrays/place.hpp"
#include "host/attention/problem.hpp"

namespace xeflash {

// The results of a forward pass. An array that is not wanted has no data.
struct Outputs {
  Array out, residual, lse;
};
FwdParams params_of(const Problem& problem, const FwdRequest& request, const Outputs& outputs,
                    const Place& place);

}  // namespace xeflash
