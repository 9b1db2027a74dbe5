#include "host/arrays/xpu_stream.hpp"

#include <array>
#include <atomic>

#include "host/arrays/interop.hpp"

namespace xeflash {
namespace {

// Keeps what Python said about a device, so that it is asked only once.
struct Known {
  std::atomic<int> device = -1;  // torch's index
  // The exchange interface has named the queue that torch.xpu.current_stream() names. Before that
  // it is not relied on: some builds of torch raise there, or give null.
  std::atomic<bool> exchange_is_right = false;
};

int device_of(py::handle tensor) { return tensor.attr("get_device")().cast<int>(); }

void* queue_by_exchange(const dlpack::ExchangeApi& api, int device) {
  void* queue = nullptr;
  if (api.current_stream(dlpack::kOneApi, device, &queue) != 0) {
    PyErr_Clear();
    return nullptr;
  }
  return queue;
}

void* queue_by_python(int device) {
  return reinterpret_cast<void*>(interop().attr("xpu_queue")(device).cast<uintptr_t>());
}

}  // namespace

XpuStream current_stream_of(py::handle tensor, const dlpack::ExchangeApi& api, int32_t sycl_index) {
  constexpr int32_t kMostDevices = 64;
  static std::array<Known, kMostDevices> known_devices;
  if (sycl_index < 0 || sycl_index >= kMostDevices) {
    const int device = device_of(tensor);
    return {device, queue_by_python(device)};
  }
  Known& known = known_devices[static_cast<size_t>(sycl_index)];
  int device = known.device.load(std::memory_order_relaxed);
  if (device < 0) known.device = device = device_of(tensor);
  void* const by_exchange = queue_by_exchange(api, device);
  if (by_exchange && known.exchange_is_right.load(std::memory_order_relaxed)) {
    return {device, by_exchange};
  }
  void* const queue = queue_by_python(device);
  known.exchange_is_right = queue && by_exchange == queue;
  return {device, queue};
}

}  // namespace xeflash
