// Returns torch's current stream of the device on which an xpu tensor lies.
#pragma once

#include <pybind11/pybind11.h>

#include "host/arrays/dlpack.hpp"

namespace xeflash {
namespace py = pybind11;

struct XpuStream {
  int device;   // torch's index: N of xpu:N
  void* queue;  // sycl::queue*; null if torch names none
};

// `sycl_index` is the DLPack id of the tensor's device: its place in sycl::device::get_devices(),
// where CPUs stand, too, and not the index that torch's functions take.
XpuStream current_stream_of(py::handle tensor, const dlpack::ExchangeApi& api, int32_t sycl_index);

}  // namespace xeflash
