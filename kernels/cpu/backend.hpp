// The SYCL CPU device as a backend: one work-item per work-group, 16 explicit lanes.
#pragma once

// These headers replace sycl.hpp, which takes a second to parse.
#include <sycl/ext/oneapi/free_function_queries.hpp>
#include <sycl/ext/oneapi/kernel_properties/properties.hpp>

#include "cpu/amx.hpp"
#include "cpu/dropout.hpp"
#include "cpu/lanes.hpp"
#include "cpu/quantised.hpp"
#include "cpu/results.hpp"
#include "cpu/row_memory.hpp"
#include "cpu/row_mma.hpp"
#include "cpu/team.hpp"
#include "cpu/upright.hpp"

// Kernels are inlined into the entry point that the compiler makes of them: otherwise the CPU
// driver would compile both. The size of a sub-group keeps the driver from trying to put several
// work-items into a vector, as there is only one. The attempt takes a third of the time of the
// longest kernels.
#define XF_KERNEL                                                                             \
  extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(                                               \
      (sycl::ext::oneapi::experimental::nd_range_kernel<1>))                                  \
      SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::sub_group_size<4>)) \
          XF_INLINE

namespace xeflash {
using namespace cpu;
}  // namespace xeflash
