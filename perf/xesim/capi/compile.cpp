// Intel's offline compiler, with the simulator's search for it and its cache.
#include <cstdlib>
#include <cstring>

#include "base/fault.hpp"
#include "capi/capi.hpp"
#include "driver/compiler.hpp"

// Null and the native binary (malloc'ed, to be freed with xesim_free), or the compiler's log.
XESIM_API char* xesim_compile(const char* device, const uint8_t* spirv, uint64_t bytes,
                              const char* flags, uint8_t** binary, uint64_t* size) {
  using namespace xesim;
  *binary = nullptr;
  try {
    const driver::Build build =
        driver::compile(driver::model_named(device), {spirv, bytes}, flags == nullptr ? "" : flags);
    if (build.binary.empty()) return strdup(build.log.c_str());
    *size = build.binary.size();
    *binary = static_cast<uint8_t*>(std::malloc(build.binary.size()));
    std::memcpy(*binary, build.binary.data(), build.binary.size());
    return nullptr;
  } catch (const std::exception& error) {
    return strdup(error.what());
  }
}
