// Xe GPUs as a backend of the tile vocabulary: one ESIMD thread owns Br rows, dpas multiplies, 2D
// block messages move.
#pragma once

#include "xe/dropout.hpp"
#include "xe/lanes.hpp"
#include "xe/results.hpp"
#include "xe/row_memory.hpp"
#include "xe/row_mma.hpp"
#include "xe/team.hpp"

// Denormals are kept and rounding is to nearest because the kernel says so: drivers differ in what
// they do otherwise. 8-bit floats are widened through fp16's denormals, and fp16 itself has many.
#define XF_FLOATS                                                                            \
  SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::intel::experimental::fp_control<             \
                                     sycl::ext::intel::experimental::fp_mode::denorm_allow | \
                                     sycl::ext::intel::experimental::fp_mode::round_to_nearest>))
#define XF_KERNEL                                                                        \
  extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(                                          \
      (sycl::ext::oneapi::experimental::nd_range_kernel<1>))                             \
      SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::intel::experimental::grf_size<256>)) \
          XF_FLOATS SYCL_ESIMD_KERNEL

namespace xeflash {
using namespace xe;
}  // namespace xeflash
