// What all functions of the C interface share. Texts that they return are malloc'ed, to be freed
// with xesim_free, unless they say otherwise.
#pragma once

#include <cstring>
#include <exception>
#include <string>
#include <string_view>

#include "base/fault.hpp"
#include "driver/devices.hpp"

#define XESIM_API extern "C" __attribute__((visibility("default")))

namespace xesim {

inline Family family_named(std::string_view device) { return driver::model_named(device).family; }

// Null, or the text of what `body` threw.
template <class F>
char* guarded(F&& body) {
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    return strdup(error.what());
  }
}

}  // namespace xesim
