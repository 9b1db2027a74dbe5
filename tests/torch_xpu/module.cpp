// torch._C._xpu_*: what torch.xpu binds when it is imported.
#include <ATen/Context.h>
#include <c10/xpu/XPUCachingAllocator.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <thread>

namespace torch_xpu {
void define_graphs(pybind11::module_& m);

namespace {
namespace py = pybind11;
namespace syclexp = sycl::ext::oneapi::experimental;
using namespace c10::xpu;
using Index = c10::DeviceIndex;

std::tuple<int64_t, int, int> data_of(const XPUStream& stream) {
  return {stream.id(), stream.device_index(), static_cast<int>(stream.device_type())};
}

py::dict properties(int index) {
  const auto& device = get_raw_device(static_cast<Index>(index));
  namespace info = sycl::info::device;
  namespace intel = sycl::ext::intel::info::device;
  py::dict p;
  p["name"] = device.get_info<info::name>();
  p["platform_name"] = device.get_platform().get_info<sycl::info::platform::name>();
  p["vendor"] = device.get_info<info::vendor>();
  p["driver_version"] = device.get_info<info::driver_version>();
  p["version"] = device.get_info<info::version>();
  p["device_id"] =
      device.has(sycl::aspect::ext_intel_device_id) ? device.get_info<intel::device_id>() : 0;
  p["max_compute_units"] = device.get_info<info::max_compute_units>();
  p["gpu_eu_count"] = device.get_info<info::max_compute_units>();
  p["gpu_subslice_count"] = device.get_info<info::max_compute_units>() / 8;
  p["max_work_group_size"] = device.get_info<info::max_work_group_size>();
  p["max_num_sub_groups"] = device.get_info<info::max_num_sub_groups>();
  p["sub_group_sizes"] = device.get_info<info::sub_group_sizes>();
  p["local_mem_size"] = device.get_info<info::local_mem_size>();
  p["total_memory"] = device.get_info<info::global_mem_size>();
  p["has_fp16"] = device.has(sycl::aspect::fp16);
  p["has_fp64"] = device.has(sycl::aspect::fp64);
  p["has_atomic64"] = device.has(sycl::aspect::atomic64);
  p["architecture"] = static_cast<int64_t>(device.get_info<syclexp::info::device::architecture>());
  return p;
}

py::dict memory_stats(int device) {
  const auto stats = XPUCachingAllocator::getDeviceStats(static_cast<Index>(device));
  const auto dict_of = [](const c10::CachingAllocator::StatArray& stat) {
    py::dict all;
    all["current"] = stat[0].current;
    all["peak"] = stat[0].peak;
    all["allocated"] = stat[0].allocated;
    all["freed"] = stat[0].freed;
    py::dict pools;
    pools["all"] = all;
    return pools;
  };
  py::dict result;
  result["allocated_bytes"] = dict_of(stats.allocated_bytes);
  result["reserved_bytes"] = dict_of(stats.reserved_bytes);
  result["active_bytes"] = dict_of(stats.active_bytes);
  result["requested_bytes"] = dict_of(stats.requested_bytes);
  return result;
}

void define_devices(py::module_& m) {
  m.def("_xpu_getDeviceCount", [] { return int{device_count()}; });
  m.def("_xpu_getDevice", [] { return int{current_device()}; });
  m.def("_xpu_setDevice", [](int device) { set_device(static_cast<Index>(device)); });
  m.def("_xpu_exchangeDevice", [](int device) {
    return device < 0 ? -1 : int{exchange_device(static_cast<Index>(device))};
  });
  m.def("_xpu_maybeExchangeDevice", [](int device) {
    return device < 0 ? -1 : int{maybe_exchange_device(static_cast<Index>(device))};
  });
  m.def("_xpu_synchronize", [](int device) {
    const py::gil_scoped_release nogil;
    syncStreamsOnDevice(static_cast<Index>(device));
  });
  m.def("_xpu_canDeviceAccessPeer", [](int a, int b) { return a == b; });
  m.def("_xpu_isInBadFork", [] { return false; });
  m.def("_xpu_getArchFlags", [] { return py::none(); });
  m.def("properties", &properties);
  m.def("initialize", [] { at::globalContext().lazyInitDevice(c10::DeviceType::XPU); });
  m.def("generators", [] {
    py::list all;
    for (Index i = 0; i < device_count(); ++i) {
      all.append(py::cast(at::globalContext().defaultGenerator(c10::Device(c10::kXPU, i))));
    }
    return all;
  });
}

void define_streams(py::module_& m) {
  m.def("_xpu_getCurrentStream",
        [](int device) { return data_of(getCurrentXPUStream(static_cast<Index>(device))); });
  m.def("_xpu_getCurrentRawStream", [](int device) {
    return reinterpret_cast<uintptr_t>(&getCurrentXPUStream(static_cast<Index>(device)).queue());
  });
  m.def("_xpu_getStreamFromExternal", [](uintptr_t queue, int device) {
    return data_of(
        getStreamFromExternal(reinterpret_cast<sycl::queue*>(queue), static_cast<Index>(device)));
  });
  m.def(
      "_xpu_setStream",
      [](int64_t stream_id, int device_index, int device_type) {
        const auto stream = XPUStream::unpack3(stream_id, static_cast<Index>(device_index),
                                               static_cast<c10::DeviceType>(device_type));
        set_device(stream.device_index());
        setCurrentXPUStream(stream);
      },
      py::arg("stream_id"), py::arg("device_index"), py::arg("device_type"));
}

void define_memory(py::module_& m) {
  m.def("_xpu_emptyCache", [] { XPUCachingAllocator::emptyCache(); });
  m.def("_xpu_memoryStats", &memory_stats);
  m.def("_xpu_resetPeakMemoryStats",
        [](int device) { XPUCachingAllocator::resetPeakStats(static_cast<Index>(device)); });
  m.def("_xpu_resetAccumulatedMemoryStats",
        [](int device) { XPUCachingAllocator::resetAccumulatedStats(static_cast<Index>(device)); });
  m.def("_xpu_getMemoryInfo", [](int device) {
    return XPUCachingAllocator::get()->getMemoryInfo(static_cast<Index>(device));
  });
}

// The memory of one MemPool, and who allocates in it.
void define_pools(py::module_& m) {
  using Pool = c10::xpu::MempoolId_t;
  py::class_<MemPool, std::shared_ptr<MemPool>>(m, "_XPUMemPool")
      .def(py::init([](const py::object& allocator, bool is_user_created, bool use_on_oom) {
             TORCH_CHECK_NOT_IMPLEMENTED(allocator.is_none(),
                                         "MemPool: allocator must be None in this backend");
             return std::make_shared<MemPool>(nullptr, is_user_created, use_on_oom);
           }),
           py::arg("allocator") = py::none(), py::arg("is_user_created") = true,
           py::arg("use_on_oom") = false)
      .def_property_readonly("id", &MemPool::id)
      .def_property_readonly("allocator", [](const MemPool&) { return py::none(); })
      .def("use_count", &MemPool::use_count);
  m.def("_xpu_beginAllocateToPool", [](int device, Pool pool) {
    XPUCachingAllocator::beginAllocateToPool(static_cast<Index>(device), pool,
                                             [](sycl::queue*) { return true; });
  });
  m.def("_xpu_beginAllocateCurrentThreadToPool", [](int device, Pool pool) {
    XPUCachingAllocator::beginAllocateToPool(
        static_cast<Index>(device), pool,
        [mine = std::this_thread::get_id()](auto*) { return std::this_thread::get_id() == mine; });
  });
  m.def("_xpu_endAllocateToPool", [](int device, Pool pool) {
    XPUCachingAllocator::endAllocateToPool(static_cast<Index>(device), pool);
  });
  m.def("_xpu_releasePool", [](int device, Pool pool) {
    XPUCachingAllocator::releasePool(static_cast<Index>(device), pool);
  });
  m.def("_xpu_memorySnapshot", [](std::optional<Pool> pool) {
    py::list segments;
    for (const auto& of : XPUCachingAllocator::snapshot(pool.value_or(Pool{})).segments) {
      py::dict segment;
      segment["device"] = of.device;
      segment["address"] = of.address;
      segment["total_size"] = of.total_size;
      segment["allocated_size"] = of.allocated_size;
      segment["active_size"] = of.active_size;
      segment["stream"] = reinterpret_cast<uintptr_t>(of.stream);
      segment["segment_pool_id"] = of.owner_private_pool_id;
      segments.append(segment);
    }
    py::dict all;
    all["segments"] = segments;
    return all;
  });
}

}  // namespace

PYBIND11_MODULE(_torch_xpu, m) {
  define_devices(m);
  define_streams(m);
  define_memory(m);
  define_pools(m);
  define_graphs(m);
}

}  // namespace torch_xpu
