// Everything that stops a launch or refuses a module is a Fault: text for the user, nothing else.
#pragma once

#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace xesim {

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// printf into a Fault.
template <class... Args>
[[noreturn]] void fail(const char* format, Args... args) {
  const int n = std::snprintf(nullptr, 0, format, args...);
  std::string text(static_cast<size_t>(n), '\0');
  std::snprintf(text.data(), text.size() + 1, format, args...);
  throw Fault(text);
}
[[noreturn]] inline void fail(const char* text) { throw Fault(text); }

}  // namespace xesim
