// No SYCL object here is destroyed at exit: by then libsycl has gone, and destructors would abort
// the interpreter.
#include "host/device/runtime.hpp"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "host/device/cpu_rates.hpp"
#include "host/device/gpus.hpp"
#include "host/device/native.hpp"

namespace xeflash {
namespace syclexp = sycl::ext::oneapi::experimental;
namespace {

// Asynchronous errors surface in wait_and_throw; an own handler also keeps the default one, newer
// than libsycl 2026.0, out of the binary.
void ignore_async(sycl::exception_list) {}

std::string no_kernels(const DeviceFacts& device, const std::string& why) {
  const std::string version =
      device.ip_version.empty() ? "" : " (IP version " + device.ip_version + ")";
  return "xeflash: " + device.name + version + " has no kernels: " + why;
}

// Returns whether a list of OpenCL drivers, separated by colons, names Intel's driver for CPUs, and
// its file exists.
bool names_cpu_driver(const char* list) {
  std::stringstream files(list ? list : "");
  for (std::string file; std::getline(files, file, ':');) {
    if (file.find("libintelocl") != std::string::npos && std::filesystem::exists(file)) return true;
  }
  return false;
}

std::set<int> threads_of_process() {
  std::set<int> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    threads.insert(std::stoi(entry.path().filename()));
  }
  return threads;
}
std::atomic<bool> all_workers_roam = false;

int pretended_cores = 0;

}  // namespace

DeviceFacts facts_of(const sycl::device& d) {
  DeviceFacts f;
  f.name = d.get_info<sycl::info::device::name>();
  f.driver = d.get_info<sycl::info::device::driver_version>();
  switch (d.get_backend()) {
    case sycl::backend::opencl:
      f.backend = "opencl";
      break;
    case sycl::backend::ext_oneapi_level_zero:
      f.backend = "level_zero";
      break;
    default:
      f.backend = "other";
      break;
  }
  f.type = d.is_cpu() ? "cpu" : d.is_gpu() ? "gpu" : "other";
  if (d.is_cpu()) {
    f.arch = cpu_arch();
  } else {
    const IpVersion version = ip_version_of(d);
    const GpuKernels kernels = kernels_for(version);
    f.ip_version = to_string(version);
    f.arch = kernels.family;
    if (f.arch.empty()) f.no_kernels = no_kernels(f, kernels.why_not);
  }
  f.cores = pretended_cores ? pretended_cores : static_cast<int>(sysconf(_SC_NPROCESSORS_CONF));
  f.compute_units = d.is_cpu() && pretended_cores
                        ? pretended_cores
                        : static_cast<int>(d.get_info<sycl::info::device::max_compute_units>());
  f.memory = static_cast<int64_t>(d.get_info<sycl::info::device::global_mem_size>());
  f.fp16 = d.has(sycl::aspect::fp16);
  f.fp64 = d.has(sycl::aspect::fp64);
  f.esimd = d.has(sycl::aspect::ext_intel_esimd);
  f.usm_system_allocations = d.has(sycl::aspect::usm_system_allocations);
  return f;
}

std::vector<DeviceFacts> all_devices() {
  std::vector<DeviceFacts> all;
  for (const auto& device : sycl::device::get_devices()) all.push_back(facts_of(device));
  return all;
}

void pretend_cores(int cores) { pretended_cores = cores; }

sycl::queue& host_queue() {
  static sycl::queue* queue = [] {
    for (const auto& device : sycl::device::get_devices(sycl::info::device_type::cpu)) {
      if (device.has(sycl::aspect::usm_system_allocations)) {
        return new sycl::queue(device, ignore_async, sycl::property::queue::in_order{});
      }
    }
    throw std::runtime_error(
        std::string(
            "no SYCL CPU device was found, so arrays in host memory cannot be computed on; ") +
        (names_cpu_driver(std::getenv("OCL_ICD_FILENAMES"))
             ? "its driver is installed, but SYCL looks for devices once, and in this process it "
               "did so before xeflash was imported: import xeflash before the first use of SYCL "
               "(by dpctl, or by torch.xpu)"
             : "mend it with: pip install \"intel-opencl-rt>=2026.0,<2027\"  (xeflash doctor "
               "tells more)"));
  }();
  return *queue;
}

sycl::queue* new_queue(size_t device) {
  return new sycl::queue(sycl::device::get_devices().at(device), ignore_async,
                         sycl::property::queue::in_order{});
}

WorkersRoam::WorkersRoam() {
  if (!all_workers_roam) before_ = threads_of_process();
}

void WorkersRoam::finish(uint64_t groups) {
  if (all_workers_roam) return;
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof(mine), &mine) != 0) return;
  for (const int thread : threads_of_process()) {
    cpu_set_t its;
    if (!before_.count(thread) && sched_getaffinity(thread, sizeof(its), &its) == 0 &&
        CPU_COUNT(&its) == 1) {
      sched_setaffinity(thread, sizeof(mine), &mine);
    }
  }
  // A launch of this size has started all workers that there will be. After 100 smaller launches
  // the search for new workers ends, too, because it costs time.
  static std::atomic<int> launches = 0;
  if (groups >= 4 * std::thread::hardware_concurrency() || ++launches == 100)
    all_workers_roam = true;
}

const Device& device_of(const sycl::queue& queue) {
  static auto& known = *new std::deque<Device>;  // never moves its elements
  static std::mutex mutex;
  const sycl::device device = queue.get_device();
  const sycl::context context = queue.get_context();
  std::lock_guard<std::mutex> lock(mutex);
  for (const Device& d : known) {
    if (d.device == device && d.context == context) return d;
  }
  return known.emplace_back(queue);
}

bool reaches(const sycl::queue& queue, const void* address) {
  return !address || device_of(queue).facts.usm_system_allocations ||
         sycl::get_pointer_type(address, queue.get_context()) != sycl::usm::alloc::unknown;
}

bool is_recording(const sycl::queue& queue) {
  return queue.ext_oneapi_get_state() == syclexp::queue_state::recording;
}

Compiled compile_source(const sycl::queue& queue, const std::string& source,
                        const std::vector<std::string>& options, const std::string& kernel) {
  std::string log;
  try {
    auto bundle = syclexp::create_kernel_bundle_from_source(queue.get_context(),
                                                            syclexp::source_language::sycl, source);
    auto program = syclexp::build(
        bundle, {queue.get_device()},
        syclexp::properties{syclexp::build_options{options}, syclexp::save_log{&log}});
    return {native_binary(program.ext_oneapi_get_kernel(kernel)), log};
  } catch (const sycl::exception& error) {
    throw std::runtime_error(std::string(error.what()) + "\n" + log);
  }
}

sycl::kernel* load_kernel(const sycl::queue& queue, const std::string& native,
                          const std::string& kernel) {
  return new sycl::kernel(load_native(queue, native, kernel));
}

}  // namespace xeflash
