// Specialization constants: ocloc has no option for their values, so they are written into the
// SPIR-V.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace xesim::driver {

// `values`: SpecId -> address of the value, as wide as the constant's type. Throws Fault on a
// malformed module.
std::vector<uint8_t> specialise(std::span<const uint8_t> spirv,
                                const std::map<uint32_t, const void*>& values);

}  // namespace xesim::driver
