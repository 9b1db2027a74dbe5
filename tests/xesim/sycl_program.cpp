// What a user's SYCL program does with a GPU, one subcommand a topic. Prints facts for
// test_driver.py to judge.
#include <cstring>
#include <iostream>
#include <sycl/ext/oneapi/experimental/graph.hpp>
#include <sycl/sycl.hpp>

namespace syclexp = sycl::ext::oneapi::experimental;
using Bundle = sycl::kernel_bundle<sycl::bundle_state::executable>;

namespace {

constexpr int kCount = 1024;

const char* kKernels = R"(
#include <sycl/sycl.hpp>
#include <sycl/ext/intel/esimd.hpp>
namespace syclexp = sycl::ext::oneapi::experimental;
namespace item = sycl::ext::oneapi::this_work_item;
using namespace sycl::ext::intel::esimd;
#define KERNEL extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclexp::nd_range_kernel<1>))

KERNEL void add_scaled(float a, const float* x, float* y, int unused) {
  auto i = item::get_nd_item<1>().get_global_linear_id();
  y[i] += a * x[i];
}
KERNEL SYCL_ESIMD_KERNEL void add_one(float* y) {
  int i = item::get_nd_item<1>().get_global_id(0);
  simd<float, 16> v;
  v.copy_from(y + i * 16);
  v += 1.f;
  v.copy_to(y + i * 16);
}
KERNEL void reverse_in_group(float* y, sycl::local_accessor<float, 1> local) {
  auto it = item::get_nd_item<1>();
  int n = it.get_local_range(0), i = it.get_local_id(0);
  local[i] = y[it.get_global_id(0)];
  sycl::group_barrier(it.get_group());
  y[it.get_global_id(0)] = local[n - 1 - i];
}
)";

const char* kTooMuchLocalMemory = R"(
#include <sycl/sycl.hpp>
#include <sycl/ext/intel/esimd.hpp>
namespace syclexp = sycl::ext::oneapi::experimental;
using namespace sycl::ext::intel::esimd;
extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclexp::nd_range_kernel<1>)) SYCL_ESIMD_KERNEL void big(float* y) {
  slm_init<192 * 1024>();
  simd<float, 16> v = slm_block_load<float, 16>(y[0]);
  v.copy_to(y);
}
)";

Bundle build(const sycl::queue& q, const char* source) {
  auto bundle = syclexp::create_kernel_bundle_from_source(
      q.get_context(), syclexp::source_language::sycl, std::string(source));
  return syclexp::build(bundle);
}

sycl::event add_scaled(sycl::queue& q, Bundle& b, float a, float* x, float* y,
                       std::vector<sycl::event> after = {}) {
  return q.submit([&](sycl::handler& h) {
    h.depends_on(after);
    h.set_args(a, x, y, 0);
    h.parallel_for(sycl::nd_range<1>(kCount, 64), b.ext_oneapi_get_kernel("add_scaled"));
  });
}

sycl::event add_one(sycl::queue& q, Bundle& b, float* y, std::vector<sycl::event> after = {}) {
  return q.submit([&](sycl::handler& h) {
    h.depends_on(after);
    h.set_args(y);
    h.parallel_for(sycl::nd_range<1>(kCount / 16, 16), b.ext_oneapi_get_kernel("add_one"));
  });
}

template <class Want>
int count_wrong(sycl::queue& q, const float* y, Want want) {
  std::vector<float> host(kCount);
  q.copy(y, host.data(), kCount).wait();
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) wrong += host[i] != want(i);
  return wrong;
}

void info(sycl::queue& q) {
  const sycl::device d = q.get_device();
  using A = syclexp::architecture;
  const A arch = d.get_info<syclexp::info::device::architecture>();
  std::cout << "name=" << d.get_info<sycl::info::device::name>() << "\narchitecture="
            << (arch == A::intel_gpu_pvc       ? "pvc"
                : arch == A::intel_gpu_bmg_g21 ? "bmg"
                : arch == A::intel_gpu_acm_g10 ? "dg2"
                                               : "?")
            << "\nfp16=" << d.has(sycl::aspect::fp16) << "\nfp64=" << d.has(sycl::aspect::fp64)
            << "\natomic64=" << d.has(sycl::aspect::atomic64)
            << "\nesimd=" << d.has(sycl::aspect::ext_intel_esimd)
            << "\nmatrix=" << d.has(sycl::aspect::ext_intel_matrix)
            << "\nusm_device=" << d.has(sycl::aspect::usm_device_allocations)
            << "\nusm_shared=" << d.has(sycl::aspect::usm_shared_allocations)
            << "\nusm_host=" << d.has(sycl::aspect::usm_host_allocations)
            << "\nusm_system=" << d.has(sycl::aspect::usm_system_allocations)
            << "\ncombinations=" << d.get_info<syclexp::info::device::matrix_combinations>().size()
            << "\nlocal_memory=" << d.get_info<sycl::info::device::local_mem_size>()
            << "\ncompute_units=" << d.get_info<sycl::info::device::max_compute_units>()
            << "\nsub_groups=";
  for (size_t n : d.get_info<sycl::info::device::sub_group_sizes>()) std::cout << n << ",";
  std::cout << "\n";
}

void launches(sycl::queue& q) {
  Bundle b = build(q, kKernels);
  float* x = sycl::malloc_shared<float>(kCount, q);
  float* y = sycl::malloc_device<float>(kCount, q);
  float* z = sycl::malloc_host<float>(kCount, q);
  for (int i = 0; i < kCount; ++i) x[i] = z[i] = static_cast<float>(i);
  std::vector<float> ones(kCount, 1.f);
  sycl::event e = q.copy(ones.data(), y, kCount);
  e = add_scaled(q, b, 2.f, x, y, {e});
  e = add_one(q, b, y, {e});
  std::cout << "wrong=" << (e.wait(), count_wrong(q, y, [](int i) { return 2 * i + 2.f; })) << "\n";
  e = q.memset(z, 0, kCount * sizeof(float));
  e = add_scaled(q, b, 1.f, x, z, {e});
  e.wait();
  std::cout << "wrong_host=" << count_wrong(q, z, [](int i) { return static_cast<float>(i); })
            << "\n";
  q.submit([&](sycl::handler& h) {
     sycl::local_accessor<float, 1> local(64, h);
     h.set_args(z, local);
     h.parallel_for(sycl::nd_range<1>(kCount, 64), b.ext_oneapi_get_kernel("reverse_in_group"));
   }).wait();
  std::cout << "wrong_local=" << count_wrong(q, z, [](int i) {
    return static_cast<float>(i / 64 * 64 + 63 - i % 64);
  }) << "\n";
  for (void* p : {x, y, z}) sycl::free(p, q);
}

// A diamond of commands on queues in and out of order: only its edges order it.
void order(sycl::queue& q) {
  Bundle b = build(q, kKernels);
  float* one = sycl::malloc_device<float>(kCount, q);
  float* two = sycl::malloc_device<float>(kCount, q);
  sycl::queue other(q.get_context(), q.get_device());
  for (int round = 0; round < 5; ++round) {
    const sycl::event a = q.memset(one, 0, kCount * sizeof(float));
    const sycl::event c = other.memset(two, 0, kCount * sizeof(float));
    const sycl::event d = add_one(q, b, one, {a}), f = add_one(other, b, two, {c});
    const sycl::event g = add_scaled(other, b, 3.f, one, two, {d, f});
    add_one(q, b, two, {g}).wait();
    if (count_wrong(q, two, [](int) { return 5.f; }) != 0)
      std::cout << "wrong round " << round << "\n";
  }
  std::cout << "done\n";
  sycl::free(one, q);
  sycl::free(two, q);
}

void graph(sycl::queue& q) {
  Bundle b = build(q, kKernels);
  float* y = sycl::malloc_device<float>(kCount, q);
  syclexp::command_graph recorded(q.get_context(), q.get_device());
  recorded.begin_recording(q);
  sycl::event e = add_one(q, b, y);
  add_one(q, b, y, {e});
  recorded.end_recording(q);
  auto executable = recorded.finalize();
  q.memset(y, 0, kCount * sizeof(float)).wait();
  for (int i = 0; i < 3; ++i) q.ext_oneapi_graph(executable).wait();
  std::cout << "wrong=" << count_wrong(q, y, [](int) { return 6.f; }) << "\n";
  sycl::free(y, q);
}

void profiling(sycl::queue& q) {
  Bundle b = build(q, kKernels);
  float* y = sycl::malloc_device<float>(kCount, q);
  uint64_t last = 0;
  bool ordered = true;
  for (int i = 0; i < 10; ++i) {
    sycl::event e = i % 2 != 0 ? add_one(q, b, y) : q.memset(y, 0, kCount * sizeof(float));
    e.wait();
    namespace p = sycl::info::event_profiling;
    const uint64_t submit = e.get_profiling_info<p::command_submit>(),
                   start = e.get_profiling_info<p::command_start>(),
                   end = e.get_profiling_info<p::command_end>();
    ordered &= last <= submit && submit <= start && start < end;
    last = end;
  }
  std::cout << "ordered=" << ordered << "\n";
  sycl::free(y, q);
}

void fault(sycl::queue& q) {
  Bundle b = build(q, kKernels);
  float* x = sycl::malloc_device<float>(kCount, q);
  float* y = sycl::malloc_device<float>(kCount, q);
  q.memset(x, 0, kCount * sizeof(float)).wait();
  q.memset(y, 0, kCount * sizeof(float)).wait();
  try {
    add_scaled(q, b, 2.f, x, y + 64);
    q.wait_and_throw();
    std::cout << "no exception\n";
  } catch (const sycl::exception& e) {
    std::cout << "exception=" << e.what() << "\n";
  }
  q.memset(y, 0, kCount * sizeof(float)).wait();
  add_one(q, b, y).wait();
  std::cout << "wrong_after=" << count_wrong(q, y, [](int) { return 1.f; }) << "\n";
  sycl::free(x, q);
  sycl::free(y, q);
}

void build_error(sycl::queue& q) {
  try {
    Bundle b = build(q, kTooMuchLocalMemory);
    b.ext_oneapi_get_kernel("big");
    std::cout << "no exception\n";
  } catch (const sycl::exception& e) {
    std::cout << "exception=" << e.what() << "\n";
  }
}

void build_only(sycl::queue& q) {
  Bundle b = build(q, kKernels);
  b.ext_oneapi_get_kernel("add_one");
  std::cout << "built\n";
}

// Work-groups larger than the hardware's are refused: 128 ESIMD threads share no Xe core of PVC and
// BMG.
void large_group(sycl::queue& q) {
  Bundle b = build(q, kKernels);
  float* y = sycl::malloc_device<float>(256 * 16, q);
  try {
    q.submit([&](sycl::handler& h) {
       h.set_args(y);
       h.parallel_for(sycl::nd_range<1>(256, 256), b.ext_oneapi_get_kernel("add_one"));
     }).wait();
    std::cout << "no exception\n";
  } catch (const sycl::exception& e) {
    std::cout << "exception=" << e.what() << "\n";
  }
  sycl::free(y, q);
}

void poll(sycl::queue& q) {
  float* y = sycl::malloc_device<float>(kCount, q);
  const sycl::event e = q.memset(y, 0, kCount * sizeof(float));
  using Status = sycl::info::event_command_status;
  int polls = 0;
  while (e.get_info<sycl::info::event::command_execution_status>() != Status::complete) ++polls;
  std::cout << "polls=" << polls << "\n";
  sycl::free(y, q);
}

}  // namespace

int main(int argc, char** argv) {
  const struct {
    const char* name;
    void (*run)(sycl::queue&);
  } topics[] = {{"info", info},
                {"launches", launches},
                {"order", order},
                {"graph", graph},
                {"fault", fault},
                {"profiling", profiling},
                {"build_error", build_error},
                {"build_only", build_only},
                {"poll", poll},
                {"large_group", large_group}};
  const bool in_order = argc > 2 && std::strcmp(argv[2], "in_order") == 0;
  using namespace sycl::property;
  sycl::queue q(sycl::gpu_selector_v,
                in_order ? sycl::property_list{queue::in_order{}, queue::enable_profiling{}}
                         : sycl::property_list{queue::enable_profiling{}});
  for (const auto& topic : topics) {
    if (argc > 1 && std::strcmp(argv[1], topic.name) == 0) return topic.run(q), 0;
  }
  return 2;
}
