#include "host/device/kernels.hpp"

#include <pybind11/stl.h>

#include <atomic>
#include <stdexcept>

#include "host/device/native.hpp"

namespace xeflash {

struct Use {
  std::string name;
  std::atomic<bool> again{true};
};

namespace {

py::object& provider() {
  static auto* object = new py::object;
  return *object;
}

struct Uses {
  std::mutex mutex;
  std::vector<std::shared_ptr<Use>> all;
};
Uses& uses() {
  static auto& all = *new Uses;
  return all;
}

// Returns Python's type of the error of a machine that cannot compile kernels.
py::object no_compiler() { return py::module_::import("xeflash.jit.headers").attr("NoCompiler"); }

}  // namespace

void set_kernel_provider(py::object object) { provider() = std::move(object); }

std::vector<std::string> used_kernels() {
  std::vector<std::string> names;
  std::lock_guard<std::mutex> lock(uses().mutex);
  for (const auto& use : uses().all) {
    if (use->again.exchange(false)) names.push_back(use->name);
  }
  return names;
}

void count_use(const Found& found) { found.use->again.store(true, std::memory_order_relaxed); }

void throw_missing(const Found& found) {
  py::set_error(no_compiler(), found.reason.c_str());
  throw py::error_already_set();
}

const Found& rehearse(const py::dict& description, Rehearsal& rehearsal) {
  struct Sizes {
    Kernels kernels;
    Found found{&kernels, "", nullptr};
  };
  const auto sizes = std::make_shared<Sizes>();
  const py::tuple made = rehearsal.provider(description);
  for (const auto& name : made[0].cast<std::vector<std::string>>()) {
    const Entry entry{name, nullptr, rehearsal.kept.size()};
    sizes->kernels.entries.push_back(std::make_shared<Entry>(entry));
  }
  read(sizes->kernels, made[1]);
  rehearsal.kept.push_back(sizes);
  return sizes->found;
}

Found make_kernels(const py::dict& description, const Place& place) {
  const DeviceFacts& facts = place.device.facts;
  if (facts.arch.empty()) throw NotImplemented(facts.no_kernels);
  if (!provider())
    throw std::runtime_error(
        "xeflash._core: no kernel provider; import xeflash, not its extension");
  auto* kernels = new Kernels;
  Found found{kernels, "", std::make_shared<Use>()};
  const auto load = [&](bool again) {
    const py::tuple made =
        provider()(description, reinterpret_cast<uintptr_t>(&place.queue), again);
    const auto native = made[0].cast<std::string>();
    const auto entries = made[1].cast<std::vector<std::string>>();
    read(*kernels, made[2]);
    found.use->name = made[3].cast<std::string>();
    kernels->entries.clear();
    py::gil_scoped_release nogil;
    for (const std::string& entry : entries) {
      const Entry loaded{entry, load_kernel(place.queue, native, entry)};
      kernels->entries.push_back(std::make_shared<Entry>(loaded));
    }
  };
  try {
    load(false);
  } catch (const RefusedBinary&) {
    load(true);
  } catch (const py::error_already_set& error) {
    if (!error.matches(no_compiler())) throw;
    found.reason = py::str(error.value()).cast<std::string>();
    found.kernels = nullptr;
    return found;
  }
  std::lock_guard<std::mutex> lock(uses().mutex);
  uses().all.push_back(found.use);
  return found;
}

}  // namespace xeflash
