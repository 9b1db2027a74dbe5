// Launches the kernels of a call where its arrays lie, in order with other work there.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/device/runtime.hpp"

namespace xeflash {
namespace py = pybind11;

// The queue of a call's arrays. Host arrays are ready when we return. On an in-order queue later
// work of the caller follows by itself, so there is nothing to wait for if the caller may drop the
// arrays before we are done. On another queue everything before us has to be finished first, each
// kernel before the next one, and the last before anything else.
struct Place {
  sycl::queue& queue;
  const Device& device;
  bool on_host;   // arrays in host memory
  bool in_order;  // the queue
  bool waits;     // the call, for its kernels
};
// Returns the place of a queue; null is the host's queue, whose arrays are in host memory.
// `frees_in_order` says that the memory of the arrays is used again only after the work that is in
// the queue now.
Place place_on(void* queue, bool frees_in_order);

// An entry point of a compiled kernel.
struct Entry {
  std::string name;
  const sycl::kernel* code = nullptr;  // null: its call is described, and launches nothing
  size_t kernel = 0;                   // then: the place of its kernel among those of the call
};

// While a rehearsal lives, calls of its thread are described and not run. Their arrays belong to a
// device that need not be there, and need no memory; `provider(description)` gives the sizes of
// each kernel that they ask for and the names of its entries; and launches are only recorded.
class Rehearsal {
 public:
  struct Launch {
    const Entry* entry;
    uint64_t groups;
    int threads;  // of a group
  };

  Rehearsal(DeviceFacts facts, py::object provider);
  ~Rehearsal();
  Rehearsal(const Rehearsal&) = delete;
  static Rehearsal* current();  // of this thread; null: none

  const Device device;
  const py::object provider;
  std::vector<std::shared_ptr<const void>> kept;  // as long as it lives: its kernels, in order
  std::vector<Launch> launches;
  int32_t splits = 1;         // of keys, the most of a call
  int64_t scratch_bytes = 0;  // likewise
};

// Launches the kernels of a call, one after the other.
class Launcher {
 public:
  explicit Launcher(const Place& place) : place_(place) {}

  template <class Params>
  void operator()(const Entry& entry, const Params& params, uint64_t groups, int threads = 1) {
    if (Rehearsal* rehearsal = Rehearsal::current()) {
      rehearsal->launches.push_back({&entry, groups, threads});
      if constexpr (requires { params.splits; })
        rehearsal->splits = std::max<int32_t>(rehearsal->splits, params.splits);
      return;
    }
    last_ = launch(place_.queue, *entry.code, params, groups, threads);
    if (!place_.in_order) last_.wait_and_throw();
    most_groups_ = std::max(most_groups_, groups);
  }
  // Zeroes memory.
  void clear(void* data, int64_t bytes) {
    if (Rehearsal::current()) return;
    last_ = place_.queue.memset(data, 0, static_cast<size_t>(bytes));
    if (!place_.in_order) last_.wait_and_throw();
  }
  void wait() { last_.wait_and_throw(); }
  uint64_t most_groups() const { return most_groups_; }

 private:
  const Place& place_;
  sycl::event last_;
  uint64_t most_groups_ = 0;
};

// Runs `launch_all(Launcher&)`, which touches no object of Python. When it returns, all launches
// are in the order of the place, or have ended if the call waits.
template <class LaunchAll>
void submit(const Place& place, LaunchAll launch_all) {
  Launcher launcher(place);
  if (Rehearsal::current()) return launch_all(launcher);
  py::gil_scoped_release nogil;
  if (!place.in_order) place.queue.wait_and_throw();
  std::optional<WorkersRoam> roam;
  if (place.on_host) roam.emplace();
  launch_all(launcher);
  if (place.waits) launcher.wait();
  if (roam) roam->finish(launcher.most_groups());
}

}  // namespace xeflash
