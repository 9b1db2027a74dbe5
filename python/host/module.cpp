// Defines xeflash._core, the functions that Python calls.
#include <dlfcn.h>
#include <pthread.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <map>

#include "host/arrays/function.hpp"
#include "host/arrays/overlap.hpp"
#include "host/arrays/place.hpp"
#include "host/attention/desc.hpp"
#include "host/attention/functions.hpp"
#include "host/attention/problem.hpp"
#include "host/attention/request.hpp"
#include "host/device/cpu_rates.hpp"
#include "host/device/kernels.hpp"
#include "host/device/launch.hpp"
#include "host/device/native.hpp"
#include "host/device/runtime.hpp"
#include "host/device/sizes.hpp"
#include "host/products/desc.hpp"

namespace xeflash {

XF_SOME_FIELDS(DeviceFacts, name, backend, driver, type, arch, no_kernels, ip_version, memory,
               compute_units, fp16, fp64, esimd, usm_system_allocations);
XF_FIELDS(CpuRates, fp32, pairs, tiles);

namespace {

std::atomic<int> calls_under_way = 0;
std::atomic<bool> cut_off = false;  // by the fork that made this process

// Marks a call of the extension. The child of a fork has only the thread that forked. If another
// thread was in a call then, SYCL's locks stay taken and its queue waits for ever, so the child
// must not call anything.
class UnderWay {
 public:
  explicit UnderWay(const std::string& function) {
    if (cut_off)
      throw std::runtime_error(
          function +
          ": a process must not be forked while a call of another thread is under way, got a call "
          "in the child of such a fork; fork when no call is, or start processes by spawn");
    ++calls_under_way;
  }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;
  ~UnderWay() { --calls_under_way; }

  static void watch_forks() {
    pthread_atfork(nullptr, nullptr, [] {
      if (calls_under_way > 0) cut_off = true;
    });
  }
};

template <auto run>
auto run_request(const py::kwargs& arguments) {
  const FwdRequest request = read_arguments(arguments);
  const UnderWay under_way(request.function);
  return run(request);
}

auto run_arguments(auto run, const py::kwargs& arguments) {
  const py::object function = arguments["function"];
  const UnderWay under_way(py::str(function).cast<std::string>());
  return run(arguments);
}
template <auto run>
auto run_arguments(const py::kwargs& arguments) {
  return run_arguments(run, arguments);
}

// Refuses a call of forward() by the shapes, strides and types of its arrays, which need no memory.
void check_shapes(const py::kwargs& arguments) {
  const FwdRequest r = read_arguments(arguments);
  const Problem p = read_problem(r);
  if (!r.out.is_none()) result_array(p, r);
  rest_array(p, r);
}

py::tuple merge_states_from_python(const py::list& outs, const py::list& lses) {
  const UnderWay under_way("merge_states");
  return merge_states(outs, lses);
}

py::list devices() {
  py::list all;
  for (const DeviceFacts& facts : all_devices()) all.append(dict_of(facts));
  return all;
}

sycl::queue& queue_at(uintptr_t address) {
  return address ? *reinterpret_cast<sycl::queue*>(address) : host_queue();
}

py::tuple compile_source_from_python(uintptr_t queue, const std::string& source,
                                     const std::vector<std::string>& options,
                                     const std::string& kernel) {
  Compiled compiled;
  {
    py::gil_scoped_release nogil;
    compiled = compile_source(queue_at(queue), source, options, kernel);
  }
  return py::make_tuple(py::bytes(compiled.code), compiled.log);
}

py::bytes compile_spirv_from_python(uintptr_t queue, const std::string& spirv,
                                    const std::string& kernel) {
  std::string code;
  {
    py::gil_scoped_release nogil;
    code = build_native(queue_at(queue), spirv, kernel);
  }
  return py::bytes(code);
}

// Runs `call` on a device of these facts, but without its launches. `provider(description)` gives
// the entries and sizes of each kernel that the call asks for. Returns the launches, each as (index
// of its kernel, entry, groups, threads of a group), the splits of the keys, and the bytes that
// launches share.
py::tuple describe_call(const py::object& call, const std::string& arch, const std::string& device,
                        const std::string& driver, int units, const py::object& provider) {
  DeviceFacts facts{};
  facts.name = device;
  facts.driver = driver;
  facts.arch = arch;
  facts.type = arch.starts_with("cpu-") ? "cpu" : "gpu";
  facts.compute_units = facts.cores = units;
  Rehearsal rehearsal(std::move(facts), provider);
  call();
  py::list launches;
  for (const Rehearsal::Launch& l : rehearsal.launches)
    launches.append(py::make_tuple(l.entry->kernel, l.entry->name, l.groups, l.threads));
  return py::make_tuple(launches, rehearsal.splits, rehearsal.scratch_bytes);
}

// Returns the seconds that `groups` work-items of an entry of peak.hpp take on the host queue.
// Entries that read have `bytes` each of the memory at `data`.
double time_peak(const std::string& native, const char* entry, int32_t steps, uint64_t groups,
                 uintptr_t data, int32_t bytes) {
  sycl::queue& queue = host_queue();
  static auto& kernels = *new std::map<std::pair<std::string, std::string>, sycl::kernel*>;
  auto& kernel = kernels[{native, entry}];
  if (!kernel) kernel = load_kernel(queue, native, entry);
  std::vector<float> results(groups);
  FwdParams params{};
  params.o.data = results.data();
  params.q.data = reinterpret_cast<void*>(data);
  params.max_q = steps;
  params.max_k = bytes;
  params.scale = 1e-3f;
  const auto start = std::chrono::steady_clock::now();
  launch(queue, *kernel, params, groups).wait_and_throw();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Makes memory for results of arrays whose framework cannot make one. It is freed with the capsule.
py::tuple allocate(uintptr_t queue, size_t bytes) {
  auto* owner = new sycl::queue(queue_at(queue));
  void* data = sycl::aligned_alloc_shared(kLineBytes, bytes ? bytes : 1, *owner);
  if (!data) {
    delete owner;
    throw std::bad_alloc();
  }
  struct Block {
    sycl::queue* queue;
    void* data;
  };
  const py::capsule keep(new Block{owner, data}, [](void* p) {
    auto* block = static_cast<Block*>(p);
    block->queue->wait();
    sycl::free(block->data, *block->queue);
    delete block->queue;
    delete block;
  });
  return py::make_tuple(reinterpret_cast<uintptr_t>(data), keep);
}

}  // namespace

// A SYCL error says that a kernel failed; a simulated device also knows which instruction did what.
void translate_sycl_error(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const sycl::exception& e) {
    using LastFault = const char*();
    auto* last_fault = reinterpret_cast<LastFault*>(dlsym(RTLD_DEFAULT, "xesim_last_fault"));
    const std::string fault = last_fault ? last_fault() : "";
    const std::string text =
        std::string("xeflash: ") + e.what() + (fault.empty() ? "" : ": ") + fault;
    PyErr_SetString(PyExc_RuntimeError, text.c_str());
  }
}

void define_attention(py::module_& m) {
  m.def("forward", &run_request<&forward>);
  m.def("backward", &run_arguments<&backward>);
  m.def("probabilities", &run_arguments<&probabilities>);
  m.def("standard_attention", &run_request<&standard_attention>);
  m.def("merge_states", &merge_states_from_python);
  m.def("check_arguments", [](const py::kwargs& arguments) { read_arguments(arguments); });
  m.def("check_shapes", &check_shapes);
  m.def("call_fields", &call_fields);
  m.def("learned_names", &learned_names);
  m.attr("MOST_LEARNED") = kMostLearned;
}

// Adds every function that a file offers (arrays/function.hpp).
void define_functions(py::module_& m) {
  for (const Function& f : functions()) {
    m.def(f.name.c_str(),
          [run = f.run](const py::kwargs& arguments) { return run_arguments(run, arguments); });
  }
  m.def("fields", [] {
    py::dict all;
    for (const Function& f : functions()) all[f.name.c_str()] = f.fields();
    return all;
  });
}

void define_kernels(py::module_& m) {
  m.def("set_kernel_provider", &set_kernel_provider);
  m.def("used_kernels", &used_kernels);
  m.def("describe", &describe_call);
  m.def("desc_names", [] { return names_of(kFieldsOf<Desc>); });
  m.def("softmax_names", [] { return names_of(kFieldsOf<SoftmaxDesc>); });
  m.def("product_names", [] { return names_of(kFieldsOf<ProductDesc>); });
  m.def("compile_source", &compile_source_from_python);
  m.def("compile_spirv", &compile_spirv_from_python);
  m.attr("GPU_BUILD_FLAGS") = level_zero::kBuildFlags;
}

void define_devices(py::module_& m) {
  m.def("devices", &devices);
  m.def("host_queue", [] { return reinterpret_cast<uintptr_t>(&host_queue()); });
  m.def("new_queue", [](size_t device) { return reinterpret_cast<uintptr_t>(new_queue(device)); });
  m.def("allocate", &allocate);
  m.def("pretend_cores", &pretend_cores);
  m.def("cpu_with_a_choice", &cpu_with_a_choice);
  m.def("measure_cpu_rates", [] { return dict_of(measure_cpu_rates()); });
  m.def(
      "set_cpu_rates",
      [](double fp32, double pairs, double tiles) { set_cpu_rates({fp32, pairs, tiles}); },
      py::arg("fp32"), py::arg("pairs"), py::arg("tiles"));
  m.def("time_peak", &time_peak, py::arg(), py::arg(), py::arg(), py::arg(), py::arg("data") = 0,
        py::arg("bytes") = 0);
}

void define_arrays(py::module_& m) {
  m.def("arch_of", [](const py::object& array, const std::string& function, const char* name) {
    return place_of(read_array(array, Checker(function), name)).device.facts.arch;
  });
  m.def("host_may_see", [](const py::object& array, const std::string& function, const char* name) {
    return host_may_see(read_array(array, Checker(function), name));
  });
  m.def("refuse_shared", [](const std::string& function, const py::object& written,
                            const std::string& name, const py::object& other) {
    const Checker check(function);
    if (overlap(read_array(written, check, "out"), read_array(other, check, name.c_str())))
      check.refuse("out", "must not share memory with " + name + ", got arrays that overlap");
  });
}

PYBIND11_MODULE(_core, m) {
  py::register_local_exception_translator(translate_sycl_error);
  UnderWay::watch_forks();
  define_attention(m);
  define_functions(m);
  define_kernels(m);
  define_arrays(m);
  define_devices(m);
}

}  // namespace xeflash
