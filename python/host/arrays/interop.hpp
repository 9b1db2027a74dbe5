// Asks Python about arrays, by xeflash.runtime.interop.
#pragma once

#include <pybind11/gil_safe_call_once.h>
#include <pybind11/pybind11.h>

namespace xeflash {

// Threads may ask for it at once: importing gives up the GIL, which a plain static would wait for
// while it holds its own lock.
inline const pybind11::module_& interop() {
  static pybind11::gil_safe_call_once_and_store<pybind11::module_> storage;
  return storage
      .call_once_and_store_result(
          [] { return pybind11::module_::import("xeflash.runtime.interop"); })
      .get_stored();
}

}  // namespace xeflash
