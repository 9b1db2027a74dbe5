#include "kernels.hpp"

#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "native.hpp"

namespace xeflash {
namespace {

py::object& provider() {
  static auto* object = new py::object;
  return *object;
}

}  // namespace

uint64_t FwdDesc::key() const {
  uint64_t k = static_cast<uint64_t>(algorithm);
  k = k << 3 | static_cast<uint64_t>(dtype);
  k = k << 3 | static_cast<uint64_t>(bias);
  k = k << 3 | (softcap ? 4u : 0u) | (alibi ? 2u : 0u) | (dropout ? 1u : 0u);
  k = k << 2 | static_cast<uint64_t>(access);
  k = k << 2 | (heads ? 2u : 0u) | (negative_scale ? 1u : 0u);
  k = k << 8 | rows;
  k = k << 12 | head_dim;
  k = k << 12 | head_dim_v;
  return k << 8 | device;
}

void set_kernel_provider(py::object object) { provider() = std::move(object); }

const FwdKernels& find_kernels(const FwdDesc& desc, sycl::queue& queue) {
  static auto& table = *new std::unordered_map<uint64_t, const FwdKernels*>;
  static std::mutex mutex;
  const uint64_t key = desc.key();
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (const auto it = table.find(key); it != table.end()) return *it->second;
  }
  auto* kernels = new FwdKernels;
  kernels->device = facts_of(queue.get_device());
  py::dict description;
  description["algorithm"] = desc.algorithm == Algorithm::kForward ? "flash_fwd" : "flash_decode";
  description["arch"] = kernels->device.arch;
  description["device"] = kernels->device.name;
  description["driver"] = kernels->device.driver;
  description["dtype"] = name_of(desc.dtype);
  description["head_dim"] = desc.head_dim;
  description["head_dim_v"] = desc.head_dim_v;
  description["rows"] = desc.rows;
  description["softcap"] = desc.softcap;
  description["alibi"] = desc.alibi;
  description["bias"] =
      desc.bias == DType::kOther ? py::object(py::none()) : py::str(name_of(desc.bias));
  description["dropout"] = desc.dropout;
  description["heads"] = desc.heads;
  description["negative_scale"] = desc.negative_scale;
  description["access"] = name_of(desc.access);
  if (!provider())
    throw std::runtime_error(
        "xeflash._core: no kernel provider; import xeflash, not its extension");
  const bool decode = desc.algorithm == Algorithm::kDecode;
  auto load = [&](bool again) {
    const auto made =
        provider()(description, reinterpret_cast<uintptr_t>(&queue), again).cast<py::tuple>();
    const auto native = made[0].cast<std::string>();
    kernels->block_q = made[1].cast<int>();
    kernels->parts = made[2].cast<int>();
    kernels->threads = made[3].cast<int>();
    py::gil_scoped_release nogil;
    kernels->main = load_kernel(queue, native, decode ? "flash_decode" : "flash_fwd");
    if (decode) kernels->combine = load_kernel(queue, native, "combine");
  };
  try {
    load(false);
  } catch (const RefusedBinary&) {
    load(true);
  }
  std::lock_guard<std::mutex> lock(mutex);
  return *table.emplace(key, kernels).first->second;
}

}  // namespace xeflash
