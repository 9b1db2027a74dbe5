// fp16 and fp32 denormals through arithmetic, in kernels that leave their treatment open or state
// it.
#include <sycl/ext/intel/experimental/fp_control_kernel_properties.hpp>

#include "esimd.hpp"

#define XE_KERNEL_STATING(mode)                               \
  extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(               \
      (sycl::ext::oneapi::experimental::nd_range_kernel<1>))  \
      SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(                      \
          (sycl::ext::intel::experimental::fp_control<        \
              sycl::ext::intel::experimental::fp_mode::mode | \
              sycl::ext::intel::experimental::fp_mode::round_to_nearest>)) SYCL_ESIMD_KERNEL void

ESIMD_INLINE void compute(const sycl::half* h, const float* f, float* widened, float* halved) {
  store<float, 16>(widened, esimd::convert<float>(load<sycl::half, 16>(h)));
  store<float, 16>(halved, simd<float, 16>(load<float, 16>(f) * 0.5f));
}

XE_KERNEL open(const sycl::half* h, const float* f, float* widened, float* halved) {
  compute(h, f, widened, halved);
}
XE_KERNEL_STATING(denorm_allow)
keeping(const sycl::half* h, const float* f, float* widened, float* halved) {
  compute(h, f, widened, halved);
}
XE_KERNEL_STATING(denorm_ftz)
flushing(const sycl::half* h, const float* f, float* widened, float* halved) {
  compute(h, f, widened, halved);
}
