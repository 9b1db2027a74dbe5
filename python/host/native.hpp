// Native code of the SYCL CPU device: what its OpenCL driver compiled SPIR-V to, taken out to be
// kept on disk, and loaded again in milliseconds instead of the driver's half second.
#pragma once

#include <string>
#include <sycl/sycl.hpp>

namespace xeflash {

// The program that `kernel` belongs to, as the driver compiled it.
std::string native_binary(const sycl::kernel& kernel);

// A kernel of such a program; throws std::runtime_error if the driver does not take it.
sycl::kernel load_native(const sycl::queue& queue, const std::string& binary,
                         const std::string& name);

}  // namespace xeflash
