// xeflash._core: what Python calls.
#include <dlfcn.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <map>

#include "forward.hpp"
#include "kernels.hpp"
#include "merge.hpp"
#include "native.hpp"
#include "runtime.hpp"
#include "standard.hpp"

namespace xeflash {
namespace {

py::tuple forward_from_python(const std::string& function, int layout, py::object q, py::object k,
                              py::object v, py::object out, py::object cu_q, py::object cu_k,
                              int64_t max_q, int64_t max_k, py::object used_k, py::object bias,
                              py::object alibi, py::object sinks, std::optional<double> scale,
                              bool causal, int64_t left, int64_t right, bool top_left,
                              double softcap, double dropout, uint64_t seed, uint64_t offset,
                              bool want_lse, bool broadcast_heads, py::object score_mod,
                              int64_t splits) {
  return forward({function,
                  static_cast<Layout>(layout),
                  std::move(q),
                  std::move(k),
                  std::move(v),
                  std::move(out),
                  std::move(cu_q),
                  std::move(cu_k),
                  std::move(used_k),
                  max_q,
                  max_k,
                  std::move(bias),
                  std::move(alibi),
                  std::move(sinks),
                  scale,
                  causal,
                  left,
                  right,
                  top_left,
                  softcap,
                  dropout,
                  seed,
                  offset,
                  want_lse,
                  broadcast_heads,
                  std::move(score_mod),
                  splits});
}

py::object standard_attention_from_python(py::object q, py::object k, py::object v, bool causal,
                                          std::optional<double> scale, bool bottom_right) {
  FwdRequest request{};
  request.function = "standard_attention";
  request.layout = Layout::kBHSD;
  request.q = std::move(q);
  request.k = std::move(k);
  request.v = std::move(v);
  request.out = request.cu_q = request.cu_k = request.used_k = py::none();
  request.bias = request.alibi = request.sinks = request.score_mod = py::none();
  request.scale = scale;
  request.causal = causal;
  request.left = request.right = -1;
  request.top_left = !bottom_right;
  request.broadcast_heads = true;
  return standard_attention(request);
}

// The same on a cache; `cu_q` None: q is (batch, length, heads, dim).
py::tuple forward_cached(const std::string& function, py::object q, py::object k_cache,
                         py::object v_cache, py::object out, py::object cu_q, py::object cu_k,
                         int64_t max_q, int64_t max_k, py::object used_k, py::object alibi,
                         py::object sinks, std::optional<double> scale, bool causal, int64_t left,
                         int64_t right, double softcap, bool want_lse, int64_t splits,
                         std::optional<double> unified_max, py::object score_mod,
                         CacheRequest cache) {
  FwdRequest r{};
  r.function = function;
  r.layout = cu_q.is_none() ? Layout::kBSHD : Layout::kTHD;
  r.q = std::move(q), r.k = std::move(k_cache), r.v = std::move(v_cache), r.out = std::move(out);
  r.cu_q = std::move(cu_q), r.cu_k = std::move(cu_k), r.used_k = std::move(used_k);
  r.max_q = max_q, r.max_k = max_k;
  r.bias = py::none(), r.alibi = std::move(alibi), r.sinks = std::move(sinks);
  r.scale = scale, r.causal = causal, r.left = left, r.right = right, r.softcap = softcap;
  r.want_lse = want_lse, r.broadcast_heads = true, r.splits = splits;
  r.unified_max = unified_max;
  r.score_mod = std::move(score_mod);
  r.cache = std::move(cache);
  return forward(r);
}

py::list devices() {
  py::list all;
  for (const DeviceFacts& f : all_devices()) {
    py::dict d;
    d["name"] = f.name;
    d["backend"] = f.backend;
    d["driver"] = f.driver;
    d["type"] = f.type;
    d["arch"] = f.arch;
    d["no_kernels"] = f.no_kernels;
    d["ip_version"] = f.ip_version;
    d["compute_units"] = f.compute_units;
    d["fp16"] = f.fp16;
    d["fp64"] = f.fp64;
    d["esimd"] = f.esimd;
    d["usm_system_allocations"] = f.usm_system;
    all.append(d);
  }
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

// Seconds that `groups` work-items of the kernel `peak` take on the host queue.
double time_peak(const std::string& native, int32_t steps, uint64_t groups) {
  sycl::queue& queue = host_queue();
  static auto& kernels = *new std::map<std::string, sycl::kernel*>;
  auto& kernel = kernels[native];
  if (!kernel) kernel = load_kernel(queue, native, "peak");
  std::vector<float> results(groups);
  FwdParams params{};
  params.o.data = results.data();
  params.max_q = steps;
  params.scale = 1e-3f;
  const auto start = std::chrono::steady_clock::now();
  launch(queue, *kernel, params, groups).wait_and_throw();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Result memory for arrays whose maker offers no way to make one: freed with the capsule.
py::tuple allocate(uintptr_t queue, size_t bytes) {
  auto* owner = new sycl::queue(queue_at(queue));
  void* data = sycl::aligned_alloc_shared(64, bytes ? bytes : 1, *owner);
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

PYBIND11_MODULE(_core, m) {
  py::register_local_exception_translator(translate_sycl_error);
  m.def("forward", &forward_from_python);
  m.def("standard_attention", &standard_attention_from_python);
  m.def("forward_cached", &forward_cached);
  m.def("merge_states", &merge_states);
  py::class_<CacheRequest>(m, "Cache")
      .def(py::init([](py::object lengths, int64_t length, py::object sequences,
                       py::object left_pad, py::object pages, py::object beams, py::object k_scale,
                       py::object v_scale, py::object k, py::object v, py::object cos,
                       py::object sin, bool interleaved) {
        return CacheRequest{true,
                            std::move(lengths),
                            length,
                            std::move(sequences),
                            std::move(left_pad),
                            std::move(pages),
                            std::move(beams),
                            std::move(k_scale),
                            std::move(v_scale),
                            std::move(k),
                            std::move(v),
                            std::move(cos),
                            std::move(sin),
                            interleaved};
      }));
  m.def("set_kernel_provider", &set_kernel_provider);
  m.def("devices", &devices);
  m.def("host_queue", [] { return reinterpret_cast<uintptr_t>(&host_queue()); });
  m.def("new_queue", [](size_t device) { return reinterpret_cast<uintptr_t>(new_queue(device)); });
  m.def("allocate", &allocate);
  m.def("time_peak", &time_peak);
  m.def("compile_source", &compile_source_from_python);
  m.def("compile_spirv", &compile_spirv_from_python);
}

}  // namespace xeflash
