// Finds the kernels that a GPU can run.
#pragma once

#include <string>
#include <sycl/detail/core.hpp>

namespace xeflash {

// The version of a GPU's architecture as Intel counts: 20.1.4 is a B580. It is 0 if it is unknown.
struct IpVersion {
  uint32_t value = 0;
  uint32_t major() const { return value >> 22; }
  uint32_t minor() const { return value >> 14 & 0xff; }
  uint32_t revision() const { return value & 0x3fff; }
};
std::string to_string(IpVersion version);

IpVersion ip_version_of(const sycl::device& gpu);

// `family` is the one whose kernels it runs: pvc, bmg, dg2. If there is none it is empty, and
// `why_not` says what is missing.
struct GpuKernels {
  const char* family;
  const char* why_not;
};
GpuKernels kernels_for(IpVersion version);

}  // namespace xeflash
