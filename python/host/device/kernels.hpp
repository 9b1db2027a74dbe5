// Looks up compiled kernels and their sizes by a description. Python (xeflash.jit) makes them at
// the first use.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "host/device/errors.hpp"
#include "host/device/fields.hpp"
#include "host/device/launch.hpp"

namespace xeflash {

// The compiled kernels of an algorithm (ALGORITHMS in tune/desc.py), and the sizes that
// xeflash.tune has for them.
struct Kernels {
  std::vector<std::shared_ptr<const Entry>> entries;
  int block_q = 0, block_k = 0;
  int rows_in_group = 0;
  int block_v = 0;         // columns of the output that a thread owns
  int groups_of_rows = 1;  // work-groups of the same rows: each has a part of the output's columns
  int threads = 1;         // of a work-group
  int turns = 1;           // of them that take turns at the keys of the same rows
};

XF_SOME_FIELDS(Kernels, block_q, block_k, rows_in_group, block_v, groups_of_rows, threads, turns);

// `provider(desc: dict, queue: int, again: bool) -> (native code: bytes, entries: tuple, Config)`,
// see xeflash.jit.provide; `again`: the driver did not take what it gave before.
void set_kernel_provider(pybind11::object provider);

// Returns the names of the kernels that calls have looked up since the last call of this function.
std::vector<std::string> used_kernels();

// Returns whether calls have looked up a kernel since the last call of used_kernels().
struct Use;

// The kernels of a description, or the reason why there are none.
struct Found {
  const Kernels* kernels = nullptr;
  std::string reason;
  std::shared_ptr<Use> use;
};

// Returns the kernels that the provider makes for a description.
Found make_kernels(const py::dict& description, const Place& place);
// Returns the kernels that the provider of a rehearsal has for a description.
const Found& rehearse(const py::dict& description, Rehearsal& rehearsal);
void count_use(const Found& found);
[[noreturn]] void throw_missing(const Found& found);

template <class Desc>
py::dict describe_to_python(const Desc& desc, const DeviceFacts& device) {
  py::dict all = dict_of(desc);
  all["arch"] = device.arch;
  all["device"] = device.name;
  all["driver"] = device.driver;
  return all;
}

// Returns the kernels of a description on a device. A description is a struct with XF_FIELDS, which
// Python knows, too.
template <class Desc>
const Found& look_up(const Desc& desc, const Place& place) {
  struct Key {
    const Device* device;
    Desc desc;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      auto hash = reinterpret_cast<uintptr_t>(key.device);
      const auto add = [&](auto value) { hash = hash * 31 + static_cast<uintptr_t>(value); };
      std::apply([&](const auto&... f) { (add(key.desc.*f.member), ...); }, kFieldsOf<Desc>);
      return hash;
    }
  };
  if (Rehearsal* rehearsal = Rehearsal::current())
    return rehearse(describe_to_python(desc, rehearsal->device.facts), *rehearsal);
  static auto& table = *new std::unordered_map<Key, Found, Hash>;
  static std::mutex mutex;
  const Key key{&place.device, desc};
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (const auto it = table.find(key); it != table.end()) {
      count_use(it->second);
      return it->second;
    }
  }
  Found found = make_kernels(describe_to_python(desc, place.device.facts), place);
  std::lock_guard<std::mutex> lock(mutex);
  return table.emplace(key, std::move(found)).first->second;
}

template <class Desc>
const Kernels& find_kernels(const Desc& desc, const Place& place) {
  const Found& found = look_up(desc, place);
  if (!found.kernels) throw_missing(found);
  return *found.kernels;
}

}  // namespace xeflash
