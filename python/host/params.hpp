// The parameters that a launch passes to a kernel of attention.
#pragma once

#include "launch.hpp"
#include "problem.hpp"

namespace xeflash {

// `lse` is without data unless wanted.
FwdParams params_of(const Problem& problem, const FwdRequest& request, const Array& out,
                    const Array& lse, const Place& place);

}  // namespace xeflash
