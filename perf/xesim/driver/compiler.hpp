// SPIR-V to native code: Intel's offline compiler ocloc, run as a program.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "driver/devices.hpp"

namespace xesim::driver {

struct Build {
  std::vector<uint8_t> binary;  // empty if the build failed
  std::string log;              // for the user
};

// `flags` are Level Zero's build flags.
Build compile(const DeviceModel& model, std::span<const uint8_t> spirv, const std::string& flags);

// Of the ocloc that compile() would run, as "26.27.039122.0123456789abcdef", where the digest is of
// all that it loads; empty if there is none.
std::string compiler_version();

}  // namespace xesim::driver
