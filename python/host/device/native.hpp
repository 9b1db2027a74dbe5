// Takes the native code that a driver compiles SPIR-V to, so that it can be kept on disk, and loads
// it again in milliseconds instead of the driver's half second and more.
#pragma once

#include <stdexcept>
#include <string>
#include <sycl/detail/core.hpp>

namespace xeflash {

// The error of a driver that does not take a binary, because it is of another driver or version.
struct RefusedBinary : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Returns the program of `kernel` as the driver compiled it.
std::string native_binary(const sycl::kernel& kernel);

// Returns the native code that the driver makes of SPIR-V; `kernel` names any of its kernels.
std::string build_native(const sycl::queue& queue, const std::string& spirv,
                         const std::string& kernel);

// Returns a kernel of such a program; throws RefusedBinary.
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
// The options for ESIMD and 256 registers a thread, for which every kernel here is written.
constexpr const char* kBuildFlags = "-vc-codegen -disable-finalizer-msg -doubleGRF";

// Returns the version of a GPU's architecture as the driver gives it; 0 if it gives none.
uint32_t ip_version(const sycl::device& gpu);
std::string native_binary(const sycl::kernel& kernel);
std::string build_native(const sycl::queue& queue, const std::string& spirv);
sycl::kernel load_native(const sycl::queue& queue, const std::string& binary,
                         const std::string& kernel);
}  // namespace level_zero

}  // namespace xeflash
