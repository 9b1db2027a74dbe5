// Native binaries on disk, so that a kernel is compiled once per machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace xesim::driver {

// $XEFLASH_CACHE_DIR, or xeflash in the user's cache folder, as
// python/xeflash/runtime/cache_folder.py.
std::string cache_folder();

// What a binary depends on; everything goes into its key.
struct BuildInput {
  std::span<const uint8_t> spirv;
  std::string device;
  std::string options;   // as ocloc gets them
  std::string compiler;  // its version, and a digest of its files
};

// Nothing, if there is no whole entry for this input.
std::optional<std::vector<uint8_t>> load_build(const BuildInput& input);
// Failures are ignored: the cache is a convenience.
void store_build(const BuildInput& input, std::span<const uint8_t> binary);

}  // namespace xesim::driver
