// The parameters that a launch passes to a kernel of attention.
#pragma once

#include "host/arrays/place.hpp"
#include "host/attention/problem.hpp"

namespace xeflash {

// What a forward pass gives; without data what is not wanted.
struct Outputs {
  Array out, residual, lse;
};
FwdParams params_of(const Problem& problem, const FwdRequest& request, const Outputs& outputs,
                    const Place& place);

}  // namespace xeflash
