// Kernels in double, for devices that have it: see simt_kernels.cpp.
#include <sycl/sycl.hpp>
namespace syclexp = sycl::ext::oneapi::experimental;
namespace item = sycl::ext::oneapi::this_work_item;

extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclexp::nd_range_kernel<1>)) void doubles(
    const uint32_t* in, uint32_t* out, int n) {
  const uint32_t i = static_cast<uint32_t>(item::get_nd_item<1>().get_global_linear_id());
  const double a = static_cast<double>(static_cast<int32_t>(in[i])) / 1024.0,
               b = in[(i + 1) % n] + 0.5;
  const double r[6] = {a + b,
                       a * b,
                       a / b,
                       sycl::sqrt(b),
                       sycl::fma(a, b, -1.0),
                       static_cast<double>(static_cast<int64_t>(a * b))};
  for (int k = 0; k < 6; ++k) {
    const auto bits = sycl::bit_cast<uint64_t>(r[k]);
    out[12 * i + 2 * k] = static_cast<uint32_t>(bits);
    out[12 * i + 2 * k + 1] = static_cast<uint32_t>(bits >> 32);
  }
}
