// Native code of a device: what its driver compiles SPIR-V to, taken out to be kept on disk, and
// loaded again in milliseconds instead of the driver's half second and more.
#pragma once

#include <stdexcept>
#include <string>
#include <sycl/detail/core.hpp>

namespace xeflash {

// The driver does not take a binary: it is another's, or another version's.
struct RefusedBinary : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The program that `kernel` belongs to, as the driver compiled it.
std::string native_binary(const sycl::kernel& kernel);

// What the driver makes of SPIR-V; `kernel` names any of its kernels.
std::string build_native(const sycl::queue& queue, const std::string& spirv,
                         const std::string& kernel);

// A kernel of such a program; throws RefusedBinary.
sycl::kernel load_native(const sycl::queue& queue, const std::string& binary,
                         const std::string& kernel);

// The SYCL runtime prefixes the names of free-function kernels.
constexpr const char* kKernelPrefix = "__sycl_kernel_";

namespace opencl {  // the CPU device
std::string native_binary(const sycl::kernel& kernel);
std::string build_native(const sycl::queue& queue, const std::string& spirv,
                         const std::string& kernel);
sycl::kernel load_native(const sycl::queue& queue, const std::string& binary,
                         const std::string& kernel);
}  // namespace opencl

namespace level_zero {  // GPUs
// ESIMD, and 256 registers a thread: what every kernel here is written for.
constexpr const char* kBuildFlags = "-vc-codegen -disable-finalizer-msg -doubleGRF";

// As the driver gives it; 0 if it gives none.
uint32_t ip_version(const sycl::device& gpu);
std::string native_binary(const sycl::kernel& kernel);
std::string build_native(const sycl::queue& queue, const std::string& spirv);
sycl::kernel load_native(const sycl::queue& queue, const std::string& binary,
                         const std::string& kernel);
}  // namespace level_zero

}  // namespace xeflash
