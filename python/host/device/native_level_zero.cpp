// Native code of GPUs, through Level Zero. The few declarations below are its stable interface; its
// headers come with no Python package.
#include <dlfcn.h>

#include <stdexcept>
#include <sycl/ext/oneapi/backend/level_zero.hpp>

#include "host/device/native.hpp"

namespace xeflash::level_zero {
namespace {

constexpr auto kBackend = sycl::backend::ext_oneapi_level_zero;

using Result = uint32_t;  // 0 is success
using BuildLog = struct BuildLogOpaque*;
struct ModuleDesc {
  uint32_t type = 0x1b;
  const void* next = nullptr;
  uint32_t format = 0;  // 0: SPIR-V, 1: native
  size_t size = 0;
  const uint8_t* data = nullptr;
  const char* flags = nullptr;
  const void* constants = nullptr;
};
struct IpVersion {
  uint32_t type = 0x1000f;
  const void* next = nullptr;
  uint32_t value = 0;
};
struct DeviceProperties {
  uint32_t type = 0x3;
  const void* next = nullptr;
  uint8_t rest[1024] = {};  // members that are not read, with room for later versions
};
struct KernelDesc {
  uint32_t type = 0x1d;
  const void* next = nullptr;
  uint32_t flags = 0;
  const char* name = nullptr;
};

// The functions of the loader that the SYCL runtime uses itself.
template <class Function>
Function* function_of(const char* name) {
  static void* library = dlopen("libze_loader.so.1", RTLD_NOW | RTLD_LOCAL);
  void* function = library ? dlsym(library, name) : nullptr;
  if (!function) throw std::runtime_error(std::string("libze_loader.so.1 has no ") + name);
  return reinterpret_cast<Function*>(function);
}

std::string failure(const char* what, Result result) {
  char code[16];
  std::snprintf(code, sizeof code, "0x%x", result);
  return std::string(what) + " failed with Level Zero error " + code;
}
void check(Result result, const char* what) {
  if (result != 0) throw std::runtime_error(failure(what, result));
}

std::string take_log(BuildLog log) {
  if (!log) return "";
  size_t size = 0;
  std::string text;
  const auto get = function_of<Result(BuildLog, size_t*, char*)>("zeModuleBuildLogGetString");
  if (get(log, &size, nullptr) == 0 && size > 1) {
    text.resize(size);
    get(log, &size, text.data());
    text.resize(size - 1);
  }
  function_of<Result(BuildLog)>("zeModuleBuildLogDestroy")(log);
  return text;
}

struct Module {
  ze_module_handle_t handle = nullptr;
  Result result = 0;
  std::string log;
};
Module create_module(const sycl::queue& queue, const std::string& code, bool native) {
  ModuleDesc desc;
  desc.format = native ? 1 : 0;
  desc.size = code.size();
  desc.data = reinterpret_cast<const uint8_t*>(code.data());
  desc.flags = native ? "" : kBuildFlags;
  Module module;
  BuildLog log = nullptr;
  module.result = function_of<Result(ze_context_handle_t, ze_device_handle_t, const ModuleDesc*,
                                     ze_module_handle_t*, BuildLog*)>("zeModuleCreate")(
      sycl::get_native<kBackend>(queue.get_context()),
      sycl::get_native<kBackend>(queue.get_device()), &desc, &module.handle, &log);
  module.log = take_log(log);
  return module;
}

std::string binary_of(ze_module_handle_t module) {
  const auto get =
      function_of<Result(ze_module_handle_t, size_t*, uint8_t*)>("zeModuleGetNativeBinary");
  size_t size = 0;
  check(get(module, &size, nullptr), "zeModuleGetNativeBinary");
  std::string binary(size, '\0');
  check(get(module, &size, reinterpret_cast<uint8_t*>(binary.data())), "zeModuleGetNativeBinary");
  return binary;
}

}  // namespace

uint32_t ip_version(const sycl::device& gpu) {
  IpVersion version;
  DeviceProperties properties;
  properties.next = &version;
  const Result result = function_of<Result(ze_device_handle_t, DeviceProperties*)>(
      "zeDeviceGetProperties")(sycl::get_native<kBackend>(gpu), &properties);
  return result == 0 ? version.value : 0;
}

std::string native_binary(const sycl::kernel& kernel) {
  const auto modules = sycl::get_native<kBackend>(kernel.get_kernel_bundle());
  if (modules.size() != 1) {
    throw std::runtime_error("a kernel was compiled to " + std::to_string(modules.size()) +
                             " modules, not one");
  }
  return binary_of(modules[0]);
}

std::string build_native(const sycl::queue& queue, const std::string& spirv) {
  const Module module = create_module(queue, spirv, false);
  if (module.result != 0) {
    throw std::runtime_error(failure("zeModuleCreate", module.result) + "\n" + module.log);
  }
  const std::string binary = binary_of(module.handle);
  check(function_of<Result(ze_module_handle_t)>("zeModuleDestroy")(module.handle),
        "zeModuleDestroy");
  return binary;
}

sycl::kernel load_native(const sycl::queue& queue, const std::string& binary,
                         const std::string& kernel) {
  const Module module = create_module(queue, binary, true);
  if (module.result != 0) {
    throw RefusedBinary("the GPU's driver refuses a compiled kernel: " +
                        failure("zeModuleCreate", module.result) + "\n" + module.log);
  }
  KernelDesc desc;
  const std::string name = kKernelPrefix + kernel;
  desc.name = name.c_str();
  ze_kernel_handle_t handle = nullptr;
  check(function_of<Result(ze_module_handle_t, const KernelDesc*, ze_kernel_handle_t*)>(
            "zeKernelCreate")(module.handle, &desc, &handle),
        "zeKernelCreate");
  const sycl::context context = queue.get_context();
  const auto bundle =
      sycl::make_kernel_bundle<kBackend, sycl::bundle_state::executable>({module.handle}, context);
  return sycl::make_kernel<kBackend>({bundle, handle}, context);
}

}  // namespace xeflash::level_zero
