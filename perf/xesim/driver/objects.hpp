// What Level Zero's handles stand for.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fault.hpp"
#include "driver/devices.hpp"
#include "driver/level_zero.hpp"
#include "launch/launch.hpp"

namespace xesim::driver {

// Leaves an API function with this result.
struct Refused {
  ze_result_t result;
};
[[noreturn]] inline void refuse(ze_result_t result) { throw Refused{result}; }

struct Device {
  const DeviceModel* model;
  uint32_t index;
  bool lost = false;                   // a command failed and no wait has told the program yet
  std::atomic<uint64_t> allocated{0};  // bytes of device and shared memory
};
// The devices of the process, from XEFLASH_SIM; they live as long as it does.
const std::vector<std::unique_ptr<Device>>& devices();
Device& device_of(ze_device_handle_t handle);
ze_device_handle_t handle_of(Device& device);
ze_driver_handle_t driver_handle();

struct Stream;

// Something that happens once: commands wait for it, the host too.
struct Signal {
  bool done = false;
  uint64_t start = 0, end = 0;   // of the command that gave it, in nanoseconds
  std::weak_ptr<Stream> stream;  // where the command that will give it is queued
  Device* device = nullptr;
  int queries = 0;  // since it was last done
};

struct Context {};

struct EventPool {
  bool counter_based = false;
  uint32_t count = 0;
};

// A counter-based event stands for the command that was appended with it last: every append gives
// it a new signal.
struct Event {
  bool counter_based = false;
  std::shared_ptr<Signal> signal = std::make_shared<Signal>();
};

struct Fence {
  std::shared_ptr<Signal> signal = std::make_shared<Signal>();
};

struct Command {
  std::function<void()> run;  // empty: events only
  std::vector<std::shared_ptr<Event>> waits;
  std::shared_ptr<Event> signal, reset;
};

// A command on its way, its events resolved to the signals that were meant when it was submitted.
struct Pending {
  std::shared_ptr<const Command> command;
  std::vector<std::shared_ptr<Signal>> waits;
  std::shared_ptr<Signal> signal;
};

// Commands that run one after the other: an immediate list, or a queue.
struct Stream {
  Device* device = nullptr;
  std::deque<std::shared_ptr<Pending>> pending;
  bool advancing = false;
  int queries = 0;  // since it last was empty
};

struct CommandList {
  Device* device = nullptr;
  ze_context_handle_t context = nullptr;
  bool synchronous = false;        // immediate: appends wait for the end
  std::shared_ptr<Stream> stream;  // immediate lists only
  std::vector<std::shared_ptr<const Command>> recorded;
  bool closed = false;
};

struct Queue {
  bool synchronous = false;
  std::shared_ptr<Stream> stream;
};

struct BuildLog {
  std::string text;
};

struct LoadedModule {
  Device* device = nullptr;
  std::vector<uint8_t> binary;
  std::shared_ptr<Module> code;
};

struct LoadedKernel {
  std::shared_ptr<LoadedModule> module;
  std::shared_ptr<Kernel> code;
  std::array<uint32_t, 3> local{1, 1, 1}, offset{0, 0, 0};
  ze_kernel_indirect_access_flags_t indirect_access = 0;
  std::vector<std::vector<uint8_t>> arguments;
  std::vector<uint64_t> slm_bytes;
  std::vector<bool> is_set;
};

// Handles are addresses of objects that this table keeps alive; any other value is recognised as
// wrong.
template <class T>
class Handles {
 public:
  static Handles& instance() {
    static Handles* handles = new Handles;  // outlives every static object of the program
    return *handles;
  }
  template <class Handle>
  void add(std::shared_ptr<T> object, Handle* handle) {
    std::lock_guard lock(mutex_);
    *handle = reinterpret_cast<Handle>(object.get());
    objects_.emplace(object.get(), std::move(object));
  }
  std::shared_ptr<T> get(const void* handle) {
    if (handle == nullptr) refuse(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
    std::lock_guard lock(mutex_);
    const auto it = objects_.find(handle);
    if (it == objects_.end()) refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT);
    return it->second;
  }
  std::shared_ptr<T> remove(const void* handle) {
    std::shared_ptr<T> object = get(handle);
    std::lock_guard lock(mutex_);
    objects_.erase(handle);
    return object;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<T>> objects_;
};

template <class T, class Handle>
ze_result_t new_handle(std::shared_ptr<T> object, Handle* handle) {
  Handles<T>::instance().add(std::move(object), handle);
  return ZE_RESULT_SUCCESS;
}
template <class T>
std::shared_ptr<T> get(const void* handle) {
  return Handles<T>::instance().get(handle);
}
template <class T>
std::shared_ptr<T> remove(const void* handle) {
  return Handles<T>::instance().remove(handle);
}

template <class T>
void require(T* pointer) {
  if (pointer == nullptr) refuse(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
}

// Prints a message of the simulator and keeps it for xesim_last_fault() and
// zeDriverGetLastErrorDescription().
void report(const std::string& text);
std::string last_report();
void clear_report();

// The body of an API function: no exception leaves it.
template <class Body>
ze_result_t guarded(Body body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return ZE_RESULT_SUCCESS;
    } else {
      return body();
    }
  } catch (const Refused& refused) {
    return refused.result;
  } catch (const std::bad_alloc&) {
    return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
  } catch (const std::exception& error) {
    report(error.what());
    return ZE_RESULT_ERROR_UNKNOWN;
  } catch (...) {
    return ZE_RESULT_ERROR_UNKNOWN;
  }
}

// The count-then-fill protocol of Level Zero's lists.
template <class T, class At>
ze_result_t fill_list(uint32_t total, uint32_t* count, T* out, At at) {
  require(count);
  if (*count == 0 || out == nullptr) {
    *count = total;
    return ZE_RESULT_SUCCESS;
  }
  if (*count > total) *count = total;
  for (uint32_t i = 0; i < *count; ++i) out[i] = at(i);
  return ZE_RESULT_SUCCESS;
}

// One clock for kernel timestamps and zeDeviceGetGlobalTimestamps. Nanoseconds of the host, no
// measure of speed.
uint64_t now_ns();

}  // namespace xesim::driver
