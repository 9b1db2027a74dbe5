// Modules: from SPIR-V or native code to something that can be launched.
#include <cstring>

#include "driver/compiler.hpp"
#include "driver/objects.hpp"
#include "driver/scheduler.hpp"
#include "driver/spirv.hpp"

using namespace xesim;
using namespace xesim::driver;

namespace {

struct Source {
  ze_module_format_t format;
  std::span<const uint8_t> code;
  std::string flags;
  const ze_module_constants_t* constants;
};

Source source_of(const ze_module_desc_t& desc) {
  Source source{desc.format,
                {desc.pInputModule, desc.inputSize},
                desc.pBuildFlags == nullptr ? "" : desc.pBuildFlags,
                desc.pConstants};
  for_each_extension(desc.pNext, [&](Extensible& e) {
    if (e.stype != ZE_STRUCTURE_TYPE_MODULE_PROGRAM_EXP_DESC) return;
    const auto& program = static_cast<const ze_module_program_exp_desc_t&>(e);
    if (program.count != 1)
      fail("xesim links no modules together: %u were given to one build", program.count);
    source.code = {program.pInputModules[0], program.inputSizes[0]};
    if (program.pBuildFlags != nullptr && program.pBuildFlags[0] != nullptr)
      source.flags = program.pBuildFlags[0];
    if (program.pConstants != nullptr) source.constants = program.pConstants[0];
  });
  if (source.code.data() == nullptr) refuse(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
  if (source.code.empty()) refuse(ZE_RESULT_ERROR_INVALID_SIZE);
  if (source.format != ZE_MODULE_FORMAT_IL_SPIRV && source.format != ZE_MODULE_FORMAT_NATIVE) {
    refuse(ZE_RESULT_ERROR_INVALID_ENUMERATION);
  }
  return source;
}

std::vector<uint8_t> build(const DeviceModel& model, const Source& source, std::string& log) {
  if (source.format == ZE_MODULE_FORMAT_NATIVE) return {source.code.begin(), source.code.end()};
  Build result;
  if (source.constants != nullptr && source.constants->numConstants != 0) {
    std::map<uint32_t, const void*> values;
    for (uint32_t i = 0; i < source.constants->numConstants; ++i) {
      values[source.constants->pConstantIds[i]] = source.constants->pConstantValues[i];
    }
    result = compile(model, specialise(source.code, values), source.flags);
  } else {
    result = compile(model, source.code, source.flags);
  }
  log += result.log;
  return std::move(result.binary);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

ze_result_t zeModuleCreate(ze_context_handle_t context, ze_device_handle_t device_handle,
                           const ze_module_desc_t* desc, ze_module_handle_t* out,
                           ze_module_build_log_handle_t* log_out) {
  return guarded([&] {
    get<Context>(context);
    Device& device = device_of(device_handle);
    require(desc);
    require(out);
    auto log = std::make_shared<BuildLog>();
    if (log_out != nullptr) new_handle(log, log_out);
    const bool is_spirv = desc->format == ZE_MODULE_FORMAT_IL_SPIRV;
    try {
      const Source source = source_of(*desc);
      auto module = std::make_shared<LoadedModule>();
      module->device = &device;
      module->binary = build(*device.model, source, log->text);
      if (module->binary.empty()) return ZE_RESULT_ERROR_MODULE_BUILD_FAILURE;
      Scheduler::instance().exclusively([&] {
        module->code = load_module(module->binary, device.model->family, device.model->dpas);
      });
      return new_handle(std::move(module), out);
    } catch (const std::exception& error) {
      log->text += std::string("xesim: ") + error.what() + "\n";
      return is_spirv ? ZE_RESULT_ERROR_MODULE_BUILD_FAILURE
                      : ZE_RESULT_ERROR_INVALID_NATIVE_BINARY;
    }
  });
}

ze_result_t zeModuleDestroy(ze_module_handle_t module) {
  return guarded([&] { remove<LoadedModule>(module); });
}

ze_result_t zeModuleBuildLogGetString(ze_module_build_log_handle_t handle, size_t* bytes,
                                      char* text) {
  return guarded([&] {
    const auto log = get<BuildLog>(handle);
    require(bytes);
    const size_t needed = log->text.size() + 1;
    if (text != nullptr && *bytes != 0) {
      const size_t n = std::min(*bytes, needed) - 1;
      std::memcpy(text, log->text.data(), n);
      text[n] = 0;
    }
    *bytes = needed;
  });
}

ze_result_t zeModuleBuildLogDestroy(ze_module_build_log_handle_t log) {
  return guarded([&] { remove<BuildLog>(log); });
}

ze_result_t zeModuleGetNativeBinary(ze_module_handle_t handle, size_t* bytes, uint8_t* out) {
  return guarded([&] {
    const auto module = get<LoadedModule>(handle);
    require(bytes);
    // The runtime leaves *bytes uninitialised when it fetches the binary: as in Intel's driver, it
    // is not looked at.
    if (out != nullptr) std::memcpy(out, module->binary.data(), module->binary.size());
    *bytes = module->binary.size();
  });
}

ze_result_t zeModuleGetProperties(ze_module_handle_t handle, ze_module_properties_t* properties) {
  return guarded([&] {
    get<LoadedModule>(handle);
    require(properties);
    properties->flags = 0;  // no imports: load_module() refuses what it cannot resolve
  });
}

ze_result_t zeModuleGetKernelNames(ze_module_handle_t handle, uint32_t* count, const char** names) {
  return guarded([&] {
    const auto module = get<LoadedModule>(handle);
    const auto kernels = kernels_of(*module->code);
    return fill_list(static_cast<uint32_t>(kernels.size()), count, names,
                     [&](uint32_t i) { return info_of(*kernels[i]).name.c_str(); });
  });
}

ze_result_t zeModuleDynamicLink(uint32_t count, ze_module_handle_t* modules,
                                ze_module_build_log_handle_t* log) {
  return guarded([&] {
    require(modules);
    for (uint32_t i = 0; i < count; ++i) get<LoadedModule>(modules[i]);
    if (log != nullptr) new_handle(std::make_shared<BuildLog>(), log);
  });
}

ze_result_t zeModuleGetGlobalPointer(ze_module_handle_t module, const char* name, size_t*, void**) {
  return guarded([&] {
    get<LoadedModule>(module);
    require(name);
    return ZE_RESULT_ERROR_INVALID_GLOBAL_NAME;  // device globals are not simulated
  });
}

ze_result_t zeModuleGetFunctionPointer(ze_module_handle_t module, const char* name, void**) {
  return guarded([&] {
    get<LoadedModule>(module);
    require(name);
    return ZE_RESULT_ERROR_INVALID_FUNCTION_NAME;
  });
}

}  // extern "C"
#pragma GCC visibility pop
