// Asks SYCL for the queue of host arrays and for devices, and has it compile, load and launch
// kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <sycl/detail/core.hpp>  // not sycl.hpp, of which g++ 16 refuses experimental parts
#include <sycl/kernel_bundle.hpp>
#include <sycl/properties/queue_properties.hpp>
#include <sycl/usm.hpp>
#include <vector>

namespace xeflash {

struct DeviceFacts {
  std::string name, backend, driver, type;
  std::string arch;        // the target of kernels: cpu-avx512-bf16, pvc, bmg, dg2, ...
  std::string no_kernels;  // why `arch` is empty, else empty
  std::string ip_version;  // of a GPU
  int64_t memory;          // bytes; of a CPU the machine's
  int compute_units;
  int cores;  // of the machine, whatever part of them a process may use
  bool fp16, fp64, esimd, usm_system_allocations;

  bool on_gpu() const { return !arch.starts_with("cpu-"); }  // of a CPU it is known
};

DeviceFacts facts_of(const sycl::device& device);
std::vector<DeviceFacts> all_devices();

// Sets the compute units and cores of CPUs, before the first call. Tests use it to count how calls
// are divided.
void pretend_cores(int cores);

// Returns the in-order queue of the SYCL CPU device, for arrays in host memory.
sycl::queue& host_queue();

// Returns an in-order queue on a device, by the index of the device in all_devices(). It lives as
// long as the process.
sycl::queue* new_queue(size_t device);

// Surrounds a launch on the host queue, from before it until it was waited for. The CPU driver pins
// each of its worker threads to a core, but not the thread that called, which works along. When
// that one happens to be on a worker's core, and the others idle, a kernel of a few milliseconds
// takes twice as long: the scheduler is slower to move it. So workers that were born in a launch
// may go wherever the caller may.
class WorkersRoam {
 public:
  WorkersRoam();
  void finish(uint64_t groups);

 private:
  std::set<int> before_;
};

struct Schedule;
struct ProductSchedule;

// A device in the context that arrays belong to. It lives as long as the process.
struct Device {
  explicit Device(const sycl::queue& queue)
      : device(queue.get_device()), context(queue.get_context()), facts(facts_of(device)) {}
  // Makes a device that need not be there, to describe calls: see launch.hpp.
  Device(const sycl::queue& queue, DeviceFacts facts)
      : device(queue.get_device()), context(queue.get_context()), facts(std::move(facts)) {}

  sycl::device device;
  sycl::context context;
  DeviceFacts facts;
  mutable std::atomic<const Schedule*> schedule = nullptr;  // see sizes.hpp
  mutable std::atomic<const ProductSchedule*> product_schedule = nullptr;
};
const Device& device_of(const sycl::queue& queue);

// Returns whether kernels on this queue may read the memory at `address`.
bool reaches(const sycl::queue& queue, const void* address);
// Returns whether submitted work becomes part of a graph that runs later.
bool is_recording(const sycl::queue& queue);

// Compiles SYCL source to the code of the queue's device; SPIR-V: build_native in native.hpp.
// `kernel` names any of its kernels. Throws with the compiler's log.
struct Compiled {
  std::string code, log;
};
Compiled compile_source(const sycl::queue& queue, const std::string& source,
                        const std::vector<std::string>& options, const std::string& kernel);

// Returns a kernel of such code; throws if the driver does not take it. It lives as long as the
// process.
sycl::kernel* load_kernel(const sycl::queue& queue, const std::string& native,
                          const std::string& kernel);

// A kernel's parameters are one argument, a struct of kernels/.
template <class Params>
sycl::event launch(sycl::queue& queue, const sycl::kernel& kernel, const Params& params,
                   uint64_t groups, int threads = 1) {
  return queue.submit([&](sycl::handler& handler) {
    handler.set_args(params);
    handler.parallel_for(sycl::nd_range<1>(groups * threads, threads), kernel);
  });
}

}  // namespace xeflash
