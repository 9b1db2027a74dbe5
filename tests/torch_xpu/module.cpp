// torch._C._xpu_*: what torch.xpu binds when it is imported.
#include <ATen/Context.h>
#include <c10/xpu/XPUCachingAllocator.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>

#include "memory.hpp"

namespace torch_xpu {
namespace {
namespace py = pybind11;
namespace syclexp = sycl::ext::oneapi::experimental;
using namespace c10::xpu;
using Index = c10::DeviceIndex;

std::tuple<int64_t, int, int> data_of(const XPUStream& stream) {
  return {stream.id(), stream.device_index(), static_cast<int>(stream.device_type())};
}

// torch._C._XPUGraph: records the current stream; its memory lives as long as it does.
class Graph {
 public:
  using Recorded = syclexp::command_graph<syclexp::graph_state::modifiable>;
  using Executable = syclexp::command_graph<syclexp::graph_state::executable>;

  explicit Graph(bool keep) : keep_(keep) {}
  ~Graph() { reset(); }

  void begin(const py::object& pool) {
    TORCH_CHECK(pool.is_none(), "pools are not shared by graphs in this backend");
    TORCH_CHECK(!recorded_, "a graph records once");
    device_ = current_device();
    queue_ = &getCurrentXPUStream().queue();
    recorded_.emplace(queue_->get_context(), queue_->get_device());
    memory_ = begin_graph_memory(*queue_);
    recorded_->begin_recording(*queue_);
  }
  void end() {
    recorded_->end_recording(*queue_);
    end_graph_memory(*queue_);
    if (!keep_) instantiate();
  }
  void instantiate() { executable_.emplace(recorded_->finalize()); }
  void replay() {
    if (!executable_) instantiate();
    getCurrentXPUStream(device_).queue().ext_oneapi_graph(*executable_);
  }
  std::tuple<int, uint64_t> pool() const { return {0, memory_}; }
  void reset() {
    if (!memory_) return;
    queue_->wait_and_throw();
    executable_.reset();
    recorded_.reset();
    release_graph_memory(memory_);
    memory_ = 0;
  }

 private:
  bool keep_;
  Index device_ = 0;
  sycl::queue* queue_ = nullptr;
  uint64_t memory_ = 0;
  std::optional<Recorded> recorded_;
  std::optional<Executable> executable_;
};

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

void define_graphs(py::module_& m) {
  m.def("_xpu_isCurrentStreamCapturing",
        [] { return device_count() > 0 && getCurrentXPUStream().is_capturing(); });
  m.def("_xpu_graph_pool_handle", [] { return std::make_tuple(0, 0); });
  py::class_<Graph>(m, "_XPUGraph")
      .def(py::init<bool>(), py::arg("keep_graph") = false)
      .def("capture_begin", &Graph::begin, py::arg("pool") = py::none())
      .def("capture_end", &Graph::end)
      .def("instantiate", &Graph::instantiate)
      .def("replay", &Graph::replay)
      .def("pool", &Graph::pool)
      .def("reset", &Graph::reset);
}

}  // namespace

PYBIND11_MODULE(_torch_xpu, m) {
  define_devices(m);
  define_streams(m);
  define_memory(m);
  define_graphs(m);
}

}  // namespace torch_xpu
