#include "kernels.hpp"

#include <pybind11/stl.h>

#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "checks.hpp"
#include "native.hpp"
#include "score_mod.hpp"

namespace xeflash {
namespace {

py::object& provider() {
  static auto* object = new py::object;
  return *object;
}

struct HashDesc {
  size_t operator()(const FwdDesc& d) const {
    const auto flags = (d.softcap ? 1u : 0u) | (d.alibi ? 2u : 0u) | (d.dropout ? 4u : 0u) |
                       (d.negative_scale ? 8u : 0u) | (d.packed_heads ? 16u : 0u) |
                       (d.split_keys ? 32u : 0u) | (d.cache_scales ? 64u : 0u) |
                       (d.unified_max ? 128u : 0u);
    uint64_t hash = 0;
    for (uint64_t field : {static_cast<uint64_t>(d.algorithm), static_cast<uint64_t>(d.dtype),
                           static_cast<uint64_t>(d.bias), static_cast<uint64_t>(flags),
                           static_cast<uint64_t>(d.rows), static_cast<uint64_t>(d.head_dim),
                           static_cast<uint64_t>(d.head_dim_v), static_cast<uint64_t>(d.access),
                           static_cast<uint64_t>(d.device), static_cast<uint64_t>(d.score_mod),
                           static_cast<uint64_t>(d.cache), static_cast<uint64_t>(d.cache_dtype),
                           static_cast<uint64_t>(d.page_unit)}) {
      hash = (hash + field) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

py::object describe(const ScoreModSource& source) {
  py::list captures;
  for (const auto& c : source.captures) captures.append(py::make_tuple(c.name, c.type, c.rank));
  return py::make_tuple(source.text, py::tuple(captures));
}

}  // namespace

const char* name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kForward:
      return "flash_fwd";
    case Algorithm::kDecode:
      return "flash_decode";
    case Algorithm::kAppend:
      return "append";
    case Algorithm::kMerge:
      return "merge_states";
    default:
      return "standard_attention";
  }
}

void set_kernel_provider(py::object object) { provider() = std::move(object); }

const FwdKernels& find_kernels(const FwdDesc& desc, sycl::queue& queue) {
  static auto& table = *new std::unordered_map<FwdDesc, const FwdKernels*, HashDesc>;
  static std::mutex mutex;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (const auto it = table.find(desc); it != table.end()) return *it->second;
  }
  const DeviceFacts device = facts_of(queue.get_device());
  if (device.arch.empty()) throw NotImplemented(device.no_kernels);
  auto* kernels = new FwdKernels;
  kernels->device = device;
  py::dict description;
  description["algorithm"] = name_of(desc.algorithm);
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
  description["packed_heads"] = desc.packed_heads;
  description["split_keys"] = desc.split_keys;
  description["negative_scale"] = desc.negative_scale;
  const char* caches[] = {"", "paged", "beam"};
  description["cache"] = caches[static_cast<int>(desc.cache)];
  description["page_unit"] = desc.page_unit;
  description["cache_dtype"] = desc.cache_dtype == DType::kOther
                                   ? py::object(py::none())
                                   : py::str(name_of(desc.cache_dtype));
  description["unified_max"] = desc.unified_max;
  description["cache_scales"] = desc.cache_scales;
  description["access"] = name_of(desc.access);
  description["score_mod"] =
      desc.score_mod ? describe(score_mod_source(desc.score_mod)) : py::object(py::none());
  if (!provider())
    throw std::runtime_error(
        "xeflash._core: no kernel provider; import xeflash, not its extension");
  auto load = [&](bool again) {
    const auto made =
        provider()(description, reinterpret_cast<uintptr_t>(&queue), again).cast<py::tuple>();
    const auto native = made[0].cast<std::string>();
    const auto entries = made[1].cast<std::vector<std::string>>();
    kernels->block_q = made[2].cast<int>();
    kernels->block_k = made[3].cast<int>();
    kernels->rows_in_group = made[4].cast<int>();
    kernels->parts = made[5].cast<int>();
    kernels->threads = made[6].cast<int>();
    kernels->entries.clear();
    py::gil_scoped_release nogil;
    for (const std::string& entry : entries) {
      kernels->entries.push_back(load_kernel(queue, native, entry));
    }
  };
  try {
    load(false);
  } catch (const RefusedBinary&) {
    load(true);
  }
  std::lock_guard<std::mutex> lock(mutex);
  return *table.emplace(desc, kernels).first->second;
}

void check_groups(uint64_t groups, Access access) {
  if (access == Access::kNone || groups <= UINT32_MAX) return;
  throw py::value_error(
      "xeflash: batch x heads x blocks of rows must be below 2^32 on a GPU, got " +
      std::to_string(groups));
}

uint64_t groups_for(const FwdDesc& desc, const FwdKernels& kernels, int64_t rows, int64_t heads) {
  const uint64_t blocks = (rows + kernels.rows_in_group - 1) / kernels.rows_in_group;
  const uint64_t groups = static_cast<uint64_t>(heads) * blocks * kernels.parts;
  check_groups(groups, desc.access);
  return groups;
}

}  // namespace xeflash
