// Xe GPUs as a backend of the tile vocabulary: one ESIMD thread owns Br rows, dpas multiplies, and
// 2D block messages move data.
#pragma once

#include "xe/dropout.hpp"
#include "xe/lanes.hpp"
#include "xe/results.hpp"
#include "xe/right_nibbles.hpp"
#include "xe/row_choice.hpp"
#include "xe/row_memory.hpp"
#include "xe/row_mma.hpp"
#include "xe/team.hpp"

// The kernel itself asks for denormals and for rounding to nearest, because drivers differ in their
// defaults. Denormals matter: 8-bit floats are widened through fp16's denormals, and fp16 data
// itself has many.
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
