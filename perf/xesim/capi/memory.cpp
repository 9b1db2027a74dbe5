// Questions about the simulated address space, for tests. The string stays valid until the thread's
// next call.
#include "machine/memory.hpp"

#include <string>

#include "capi/capi.hpp"

// Whether all of [address, address + bytes) is in one live allocation.
XESIM_API int xesim_holds(uint64_t address, uint64_t bytes) {
  return xesim::Memory::instance().find(address, bytes) != nullptr;
}

XESIM_API const char* xesim_explain(uint64_t address, uint64_t bytes) {
  static thread_local std::string text;
  try {
    text = xesim::Memory::instance().explain(address, bytes);
  } catch (...) {
    text.clear();
  }
  return text.c_str();
}
