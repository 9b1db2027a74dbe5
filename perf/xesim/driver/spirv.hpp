// What ocloc has no option for is written into the SPIR-V.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace xesim::driver {

// Specialization constants get their values. `values`: SpecId -> address of the value, as wide as
// the constant's type. Throws Fault on a malformed module.
std::vector<uint8_t> specialise(std::span<const uint8_t> spirv,
                                const std::map<uint32_t, const void*>& values);

// Every kernel flushes denormals to zero in the widths for which it does not state a mode itself:
// what a compiler with that default makes of the module. Throws Fault on a malformed module.
std::vector<uint8_t> flush_denormals(std::span<const uint8_t> spirv);

}  // namespace xesim::driver
