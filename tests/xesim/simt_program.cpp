// Runs the kernels of a source file on the device that the environment selects and writes what each
// leaves behind:
//   simt_program SOURCE FOLDER gpu|cpu KERNEL...
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <sycl/sycl.hpp>

namespace syclexp = sycl::ext::oneapi::experimental;

namespace {

constexpr int kInputs = 4096, kOutputs = 1 << 16;

struct Job {
  int dims;
  sycl::range<3> global, local;  // the first `dims` are used
  int local_words;
};
// Groups whose sizes are no multiples of a sub-group, and whole ones where sub-groups are looked
// at.
const std::map<std::string, Job> kJobs = {
    {"range_1d", {1, {385, 1, 1}, {77, 1, 1}, 0}},
    {"range_2d", {2, {15, 22, 1}, {5, 11, 1}, 0}},
    {"range_3d", {3, {6, 10, 9}, {2, 5, 3}, 0}},
    {"local_memory", {1, {1000, 1, 1}, {125, 1, 1}, 256}},
    {"atomics", {1, {2048, 1, 1}, {64, 1, 1}, 64}},
    {"sub_groups_16", {1, {1024, 1, 1}, {64, 1, 1}, 0}},
    {"sub_groups_32", {1, {1024, 1, 1}, {128, 1, 1}, 0}},
    {"work_group_votes", {1, {1050, 1, 1}, {150, 1, 1}, 0}},
    {"work_group_functions", {1, {1050, 1, 1}, {150, 1, 1}, 0}},
};
const Job kUsual = {1, {1023, 1, 1}, {93, 1, 1}, 0};

void launch(sycl::queue& q, sycl::kernel kernel, const Job& job, uint32_t* in, uint32_t* out) {
  q.submit([&](sycl::handler& h) {
     if (job.local_words != 0) {
       h.set_args(in, out, kInputs, sycl::local_accessor<uint32_t, 1>(job.local_words, h));
     } else {
       h.set_args(in, out, kInputs);
     }
     if (job.dims == 1) {
       h.parallel_for(sycl::nd_range<1>(job.global[0], job.local[0]), kernel);
     } else if (job.dims == 2) {
       h.parallel_for(
           sycl::nd_range<2>({job.global[0], job.global[1]}, {job.local[0], job.local[1]}), kernel);
     } else {
       h.parallel_for(sycl::nd_range<3>(job.global, job.local), kernel);
     }
   }).wait_and_throw();
}

}  // namespace

int main(int argc, char** argv) {
  std::stringstream source;
  source << std::ifstream(argv[1]).rdbuf();
  const std::string folder = argv[2];
  sycl::queue q(std::string(argv[3]) == "gpu" ? sycl::device(sycl::gpu_selector_v)
                                              : sycl::device(sycl::cpu_selector_v));
  auto text = syclexp::create_kernel_bundle_from_source(
      q.get_context(), syclexp::source_language::sycl, source.str());
  auto bundle = syclexp::build(text);
  uint32_t* in = sycl::malloc_device<uint32_t>(kInputs, q);
  uint32_t* out = sycl::malloc_device<uint32_t>(kOutputs, q);
  std::vector<uint32_t> words(kInputs), result(kOutputs);
  uint64_t state = 12345;
  for (uint32_t& word : words) {  // Knuth's linear congruential generator
    state = state * 6364136223846793005u + 1442695040888963407u;
    word = static_cast<uint32_t>(state >> 32);
  }
  q.copy(words.data(), in, kInputs).wait();
  for (int i = 4; i < argc; ++i) {
    const std::string name = argv[i];
    const auto found = kJobs.find(name);
    try {
      q.memset(out, 0, kOutputs * sizeof(uint32_t)).wait();
      launch(q, bundle.ext_oneapi_get_kernel(name), found == kJobs.end() ? kUsual : found->second,
             in, out);
      q.copy(out, result.data(), kOutputs).wait();
      std::ofstream(folder + "/" + name)
          .write(reinterpret_cast<const char*>(result.data()), kOutputs * sizeof(uint32_t));
    } catch (const std::exception& error) {
      std::ofstream(folder + "/" + name + ".error") << error.what();
    }
  }
  sycl::free(in, q);
  sycl::free(out, q);
}
