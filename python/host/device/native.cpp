#include "host/device/native.hpp"

namespace xeflash {
namespace {

bool is_level_zero(sycl::backend backend) {
  return backend == sycl::backend::ext_oneapi_level_zero;
}

}  // namespace

std::string native_binary(const sycl::kernel& kernel) {
  return is_level_zero(kernel.get_backend()) ? level_zero::native_binary(kernel)
                                             : opencl::native_binary(kernel);
}

std::string build_native(const sycl::queue& queue, const std::string& spirv,
                         const std::string& kernel) {
  return is_level_zero(queue.get_backend()) ? level_zero::build_native(queue, spirv)
                                            : opencl::build_native(queue, spirv, kernel);
}

sycl::kernel load_native(const sycl::queue& queue, const std::string& binary,
                         const std::string& kernel) {
  return is_level_zero(queue.get_backend()) ? level_zero::load_native(queue, binary, kernel)
                                            : opencl::load_native(queue, binary, kernel);
}

}  // namespace xeflash
