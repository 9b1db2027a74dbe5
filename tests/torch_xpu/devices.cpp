// c10::xpu in a CPU build of torch: devices and streams, as its headers declare them.
// Devices are the Level Zero GPUs of this process, all in the default context of their platform.
#include <c10/xpu/XPUFunctions.h>
#include <c10/xpu/XPUStream.h>

#include <array>
#include <atomic>
#include <memory>
#include <ostream>
#include <sycl/sycl.hpp>
#include <vector>

namespace c10::xpu {
namespace {

struct Devices {
  std::vector<sycl::device> all;
  std::unique_ptr<sycl::context> context;

  Devices() {
    for (const auto& platform : sycl::platform::get_platforms()) {
      if (platform.get_backend() != sycl::backend::ext_oneapi_level_zero) continue;
      for (const auto& device : platform.get_devices(sycl::info::device_type::gpu)) {
        all.push_back(device);
      }
      if (!all.empty()) break;  // torch, too, takes the devices of one platform
    }
    if (!all.empty()) {
      context = std::make_unique<sycl::context>(all[0].get_platform().khr_get_default_context());
    }
  }
};

Devices& devices() {
  static auto& devices = *new Devices;  // SYCL objects must not be destroyed at exit
  return devices;
}

thread_local DeviceIndex current = 0;

DeviceIndex given_or_current(DeviceIndex device) {
  if (device == -1) return current;
  check_device_index(device);
  return device;
}

}  // namespace

DeviceIndex device_count() { return static_cast<DeviceIndex>(devices().all.size()); }

DeviceIndex device_count_ensure_non_zero() {
  TORCH_CHECK(device_count() > 0, "No XPU devices are available.");
  return device_count();
}

DeviceIndex current_device() { return current; }

void set_device(DeviceIndex device) {
  check_device_index(device);
  current = device;
}

DeviceIndex exchange_device(DeviceIndex device) {
  const DeviceIndex before = current;
  if (device != before) set_device(device);
  return before;
}

DeviceIndex maybe_exchange_device(DeviceIndex device) { return exchange_device(device); }

sycl::device& get_raw_device(DeviceIndex device) {
  check_device_index(device);
  return devices().all[static_cast<size_t>(device)];
}

sycl::context& get_device_context() {
  device_count_ensure_non_zero();
  return *devices().context;
}

DeviceIndex get_device_idx_from_pointer(void* pointer) {
  const auto device = sycl::get_pointer_device(pointer, get_device_context());
  for (DeviceIndex i = 0; i < device_count(); ++i) {
    if (get_raw_device(i) == device) return i;
  }
  TORCH_CHECK(false, "The pointer is of none of the XPU devices.");
}

// ---- streams: 32 in-order queues for each priority; the id says which, or is a queue's address
// ----
namespace {

constexpr int kQueues = 32, kNormal = 1;
using Pool = std::array<std::array<std::unique_ptr<sycl::queue>, kQueues>, 3>;

struct StreamsOfDevice {
  Pool pool;
  std::array<std::atomic<uint32_t>, 3> next{};
};

void warn(sycl::exception_list errors) {
  for (const auto& error : errors) {
    try {
      std::rethrow_exception(error);
    } catch (const sycl::exception& e) {
      TORCH_WARN("SYCL exception: ", e.what());
    }
  }
}

std::vector<std::unique_ptr<StreamsOfDevice>>& streams() {
  static auto& streams = *[] {
    namespace queue = sycl::ext::oneapi::property::queue;
    const auto in_order = sycl::property::queue::in_order();
    const std::array<sycl::property_list, 3> properties = {
        sycl::property_list{in_order, queue::priority_low()},
        sycl::property_list{in_order, queue::priority_normal()},
        sycl::property_list{in_order, queue::priority_high()}};
    auto* all = new std::vector<std::unique_ptr<StreamsOfDevice>>;
    for (DeviceIndex device = 0; device < device_count(); ++device) {
      auto& of_device = *all->emplace_back(std::make_unique<StreamsOfDevice>());
      for (size_t priority = 0; priority < 3; ++priority) {
        for (auto& queue : of_device.pool[priority]) {
          queue = std::make_unique<sycl::queue>(get_device_context(), get_raw_device(device), warn,
                                                properties[priority]);
        }
      }
    }
    return all;
  }();
  return streams;
}

bool is_of_pool(StreamId id) { return id & 1; }
StreamId pool_id(int priority, int index) {
  return (StreamId{index} << 4) | (StreamId{priority} << 1) | 1;
}
int priority_of(StreamId id) { return static_cast<int>((id >> 1) & 7); }
int index_of(StreamId id) { return static_cast<int>((id >> 4) & (kQueues - 1)); }

XPUStream stream_of(DeviceIndex device, StreamId id) {
  return XPUStream(XPUStream::UNCHECKED, Stream(Stream::UNSAFE, c10::Device(kXPU, device), id));
}

StreamId& current_stream_id(DeviceIndex device) {
  thread_local std::vector<StreamId> ids(static_cast<size_t>(device_count()),
                                         pool_id(kNormal, kQueues - 1));
  return ids[static_cast<size_t>(device)];
}

}  // namespace

int XPUStream::priority() const { return is_of_pool(id()) ? 1 - priority_of(id()) : 0; }

sycl::queue& XPUStream::queue() const {
  if (!is_of_pool(id())) return *reinterpret_cast<sycl::queue*>(id());
  auto& pool = streams()[static_cast<size_t>(device_index())]->pool;
  return *pool[static_cast<size_t>(priority_of(id()))][static_cast<size_t>(index_of(id()))];
}

XPUStream getStreamFromPool(const int priority, DeviceIndex device) {
  device = given_or_current(device);
  const int at = std::clamp(1 - priority, 0, 2);
  auto& next = streams()[static_cast<size_t>(device)]->next[static_cast<size_t>(at)];
  return stream_of(device, pool_id(at, static_cast<int>(next++ % kQueues)));
}

XPUStream getStreamFromPool(const bool high_priority, DeviceIndex device) {
  return getStreamFromPool(high_priority ? -1 : 0, device);
}

XPUStream getStreamFromExternal(sycl::queue* queue, DeviceIndex device) {
  TORCH_CHECK(queue && queue->is_in_order(), "External SYCL queue must be in-order.");
  TORCH_CHECK(queue->get_context() == get_device_context(),
              "External SYCL queue must be created with the same context as the PyTorch XPU used.");
  return stream_of(given_or_current(device), reinterpret_cast<StreamId>(queue));
}

XPUStream getCurrentXPUStream(DeviceIndex device) {
  device = given_or_current(device);
  return stream_of(device, current_stream_id(device));
}

void setCurrentXPUStream(XPUStream stream) {
  current_stream_id(stream.device_index()) = stream.id();
}

std::ostream& operator<<(std::ostream& out, const XPUStream& stream) {
  return out << stream.unwrap();
}

void syncStreamsOnDevice(DeviceIndex device) {
  for (auto& queues : streams()[static_cast<size_t>(given_or_current(device))]->pool) {
    for (auto& queue : queues) queue->wait_and_throw();
  }
}

}  // namespace c10::xpu
