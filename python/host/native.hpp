// Native code of the SYCL CPU device: what its OpenCL driver compiled SPIR-V to, taken out to be
// kept on disk, and loaded again in milliseconds instead of the driver's half second.
#pragma once

#include <stdexcept>
#include <string>
#include <sycl/sycl.hpp>

namespace xeflash {

// The driver does not take a binary: it is another's, or another version's.
struct RefusedBinary : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The program that `kernel` belongs to, as the driver compiled it.
std::string native_binary(const sycl::kernel& kernel);

// A kernel of such a program; throws RefusedBinary.
sycl::kernel load_native(const sycl::queue& queue, const std::string& binary,
                         const std::string& name);

}  // namespace xeflash
