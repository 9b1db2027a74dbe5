// Drivers: one, with the devices that XEFLASH_SIM names.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "driver/compiler.hpp"
#include "driver/objects.hpp"
#include "machine/checks.hpp"

namespace xesim::driver {
namespace {

std::mutex report_mutex;
std::string& report_text() {
  static auto* text = new std::string;
  return *text;
}
char the_driver;

// Major << 24 | minor << 16 | build, as Intel's driver counts; from 1.6.32149 on the runtime uses
// in-order lists of the driver. Extensions newer than that are not claimed.
constexpr uint32_t kDriverVersion = 1u << 24 | 6u << 16 | 33578;
constexpr ze_api_version_t kApiVersion = ze_version(1, 9);

constexpr std::pair<const char*, uint32_t> kExtensions[] = {
    {"ZE_extension_device_ip_version", ze_version(1, 0)},
    {"ZE_extension_eu_count", ze_version(1, 0)},
    {"ZE_extension_float_atomics", ze_version(1, 0)},
    {"ZE_extension_subgroups", ze_version(1, 0)},
    {"ZE_extension_bfloat16_conversions", ze_version(1, 0)},
    {"ZE_extension_device_memory_properties", ze_version(1, 0)},
    {"ZE_extension_kernel_max_group_size_properties", ze_version(1, 0)},
    {"ZE_extension_memory_free_policies", ze_version(1, 0)},
    {"ZE_extension_pci_properties", ze_version(1, 0)},
    {"ZE_intel_get_driver_version_string", ze_version(1, 0)},
    {"ZE_experimental_event_pool_counter_based", ze_version(1, 0)},
    {"ZE_experimental_global_offset", ze_version(1, 0)},
    {"ZE_experimental_immediate_command_list_append", ze_version(1, 0)},
    {"ZE_experimental_relaxed_allocation_limits", ze_version(1, 0)},
};

// A real driver's version stands for its compiler's as well: programs keep binaries by it.
std::string version_string() {
  std::string text = std::to_string(kDriverVersion >> 24) + '.' +
                     std::to_string(kDriverVersion >> 16 & 0xff) + '.' +
                     std::to_string(kDriverVersion & 0xffff);
  const std::string compiler = compiler_version();
  if (!compiler.empty()) text += "+ocloc." + compiler;
  if (current_checks().denormals == Checks::Denormals::kFlush) text += "+denormals.flush";
  return text;
}

uint32_t driver_count() { return devices().empty() ? 0 : 1; }

void check_driver(const void* handle) {
  if (handle == nullptr) refuse(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
  if (handle != &the_driver) refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT);
}

// Extension: the size with the final 0 if `text` is null, else as much as fits.
ze_result_t zeIntelGetDriverVersionString(ze_driver_handle_t driver, char* text, size_t* size) {
  return guarded([&] {
    check_driver(driver);
    require(size);
    const std::string version = version_string();
    if (text != nullptr && *size > 0) {
      const size_t length = std::min(*size - 1, version.size());
      std::memcpy(text, version.data(), length);
      text[length] = 0;
    }
    *size = version.size() + 1;
  });
}

}  // namespace

const std::vector<std::unique_ptr<Device>>& devices() {
  static const auto* all = [] {
    auto* list = new std::vector<std::unique_ptr<Device>>;
    const char* text = std::getenv("XEFLASH_SIM");
    try {
      for (const DeviceModel* model : parse_devices(text == nullptr ? "" : text)) {
        auto device = std::make_unique<Device>();
        device->model = model;
        device->index = static_cast<uint32_t>(list->size());
        list->push_back(std::move(device));
      }
    } catch (const std::exception& error) {
      list->clear();
      report(error.what());
    }
    return list;
  }();
  return *all;
}

Device& device_of(ze_device_handle_t handle) {
  if (handle == nullptr) refuse(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
  for (const auto& device : devices()) {
    if (handle_of(*device) == handle) return *device;
  }
  refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT);
}

ze_device_handle_t handle_of(Device& device) {
  return reinterpret_cast<ze_device_handle_t>(&device);
}
ze_driver_handle_t driver_handle() { return reinterpret_cast<ze_driver_handle_t>(&the_driver); }

uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

void report(const std::string& text) {
  std::fprintf(stderr, "xesim: %s\n", text.c_str());
  std::lock_guard lock(report_mutex);
  report_text() = text;
}
std::string last_report() {
  std::lock_guard lock(report_mutex);
  return report_text();
}
void clear_report() {
  std::lock_guard lock(report_mutex);
  report_text().clear();
}

}  // namespace xesim::driver

using namespace xesim::driver;

#pragma GCC visibility push(default)
extern "C" {

ze_result_t zeInit(ze_init_flags_t) {
  return guarded(
      [] { return driver_count() == 0 ? ZE_RESULT_ERROR_UNINITIALIZED : ZE_RESULT_SUCCESS; });
}

ze_result_t zeDriverGet(uint32_t* count, ze_driver_handle_t* drivers) {
  return guarded([&] {
    return fill_list(driver_count(), count, drivers, [](uint32_t) { return driver_handle(); });
  });
}

ze_result_t zeInitDrivers(uint32_t* count, ze_driver_handle_t* drivers,
                          ze_init_driver_type_desc_t*) {
  return guarded([&] {
    require(count);
    if (driver_count() == 0) refuse(ZE_RESULT_ERROR_UNINITIALIZED);
    return fill_list(driver_count(), count, drivers, [](uint32_t) { return driver_handle(); });
  });
}

ze_result_t zeDriverGetApiVersion(ze_driver_handle_t driver, ze_api_version_t* version) {
  return guarded([&] {
    check_driver(driver);
    require(version);
    *version = kApiVersion;
  });
}

ze_result_t zeDriverGetProperties(ze_driver_handle_t driver, ze_driver_properties_t* properties) {
  return guarded([&] {
    check_driver(driver);
    require(properties);
    std::memset(properties->uuid, 0, sizeof properties->uuid);
    std::memcpy(properties->uuid, "xesim", 5);
    properties->driverVersion = kDriverVersion;
  });
}

ze_result_t zeDriverGetIpcProperties(ze_driver_handle_t driver,
                                     ze_driver_ipc_properties_t* properties) {
  return guarded([&] {
    check_driver(driver);
    require(properties);
    properties->flags = 0;
  });
}

ze_result_t zeDriverGetExtensionProperties(ze_driver_handle_t driver, uint32_t* count,
                                           ze_driver_extension_properties_t* extensions) {
  return guarded([&] {
    check_driver(driver);
    return fill_list(
        static_cast<uint32_t>(std::size(kExtensions)), count, extensions, [](uint32_t i) {
          ze_driver_extension_properties_t extension{};
          std::snprintf(extension.name, sizeof extension.name, "%s", kExtensions[i].first);
          extension.version = kExtensions[i].second;
          return extension;
        });
  });
}

ze_result_t zeDriverGetExtensionFunctionAddress(ze_driver_handle_t driver, const char* name,
                                                void** address) {
  return guarded([&] {
    check_driver(driver);
    require(name);
    require(address);
    const bool known = std::strcmp(name, "zeIntelGetDriverVersionString") == 0;
    *address = known ? reinterpret_cast<void*>(&zeIntelGetDriverVersionString) : nullptr;
    return known ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
  });
}

ze_result_t zeDriverGetLastErrorDescription(ze_driver_handle_t driver, const char** text) {
  return guarded([&] {
    check_driver(driver);
    require(text);
    static thread_local std::string copy;
    copy = last_report();
    *text = copy.c_str();
  });
}

}  // extern "C"
#pragma GCC visibility pop
