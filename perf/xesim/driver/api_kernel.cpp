// Kernels: their properties, arguments and launches.
#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "driver/append.hpp"
#include "driver/objects.hpp"

using namespace xesim;
using namespace xesim::driver;

namespace {

const DeviceModel& model_of(const LoadedKernel& kernel) { return *kernel.module->device->model; }

// Work-items of the largest group: the driver's limit, and the hardware threads of one Xe core.
uint32_t max_group_size(const LoadedKernel& kernel) {
  const KernelInfo& info = info_of(*kernel.code);
  const DeviceModel& model = model_of(kernel);
  return std::min(model.max_group_size,
                  model.group_threads(info.grf_count) * static_cast<uint32_t>(info.simd_size));
}

bool is_local_memory(const KernelInfo& info, int index) {
  return std::any_of(info.payload.begin(), info.payload.end(), [&](const PayloadArg& a) {
    return a.index == index && a.mode == AddressMode::kSlm;
  });
}

// Bytes that the kernel reads of an argument.
size_t bytes_of(const KernelInfo& info, int index) {
  size_t bytes = 0;
  for (const PayloadArg& a : info.payload) {
    if (a.index != index) continue;
    if (a.type == ArgType::kPointer) bytes = std::max(bytes, sizeof(uint64_t));
    if (a.type == ArgType::kValue) bytes = std::max(bytes, size_t{a.source_offset} + a.size);
  }
  return bytes;
}

void set_argument(LoadedKernel& kernel, uint32_t index, size_t bytes, const void* value) {
  const KernelInfo& info = info_of(*kernel.code);
  if (index >= kernel.arguments.size()) refuse(ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX);
  const int i = static_cast<int>(index);
  kernel.is_set[index] = true;
  if (is_local_memory(info, i)) {
    if (value != nullptr) refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT);
    kernel.slm_bytes[index] = bytes;
    return;
  }
  const size_t needed = bytes_of(info, i);
  if (bytes < needed) refuse(ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE);
  const auto* first = static_cast<const uint8_t*>(value);
  // A null value is the null pointer.
  kernel.arguments[index] =
      first == nullptr ? std::vector<uint8_t>(needed) : std::vector<uint8_t>(first, first + bytes);
}

void check_launch(const LoadedKernel& kernel) {
  const KernelInfo& info = info_of(*kernel.code);
  const DeviceModel& model = model_of(kernel);
  const uint64_t size = uint64_t{kernel.local[0]} * kernel.local[1] * kernel.local[2];
  if (size > max_group_size(kernel)) {
    report("kernel " + info.name + ": a work-group of " + std::to_string(size) +
           " is larger than " + std::to_string(max_group_size(kernel)) +
           ", the most that one Xe core of " + model.id + " holds at " +
           std::to_string(info.grf_count) + " registers a thread and sub-groups of " +
           std::to_string(info.simd_size));
    refuse(ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION);
  }
  uint64_t slm = info.slm_size;
  for (const uint64_t bytes : kernel.slm_bytes) slm += bytes;
  if (slm > model.slm_bytes) {
    report("kernel " + info.name + ": " + std::to_string(slm) +
           " bytes of local memory are more than a work-group of " + model.id + " can have, " +
           std::to_string(model.slm_bytes));
    refuse(ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
  }
  for (const PayloadArg& a : info.payload) {
    if (a.index < 0 || kernel.is_set[static_cast<size_t>(a.index)]) continue;
    report("kernel " + info.name + ": argument " + std::to_string(a.index) + " was not set");
    refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT);
  }
}

ze_result_t append_launch(ze_command_list_handle_t list_handle, ze_kernel_handle_t kernel_handle,
                          const ze_group_count_t* groups, ze_event_handle_t signal,
                          uint32_t wait_count, ze_event_handle_t* waits) {
  const auto list = get<CommandList>(list_handle);
  const auto kernel = get<LoadedKernel>(kernel_handle);
  require(groups);
  if (kernel->module->device != list->device) refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT);
  check_launch(*kernel);
  // Arguments count as they are now, whatever is set before the launch runs.
  auto desc = std::make_shared<LaunchDesc>();
  desc->kernel = kernel->code;
  desc->groups = {groups->groupCountX, groups->groupCountY, groups->groupCountZ};
  desc->local = kernel->local;
  desc->offset = kernel->offset;
  desc->arguments = kernel->arguments;
  desc->slm_bytes = kernel->slm_bytes;
  desc->device = list->device->model->id;
  desc->chip = list->device->model->chip(list->device);
  const bool empty = std::count(desc->groups.begin(), desc->groups.end(), 0u) != 0;
  auto run = [desc, empty, module = kernel->module] {
    if (!empty) launch(*desc);
  };
  return append(*list, std::move(run), signal, wait_count, waits);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

ze_result_t zeKernelCreate(ze_module_handle_t module_handle, const ze_kernel_desc_t* desc,
                           ze_kernel_handle_t* out) {
  return guarded([&] {
    const auto module = get<LoadedModule>(module_handle);
    require(desc);
    require(desc->pKernelName);
    require(out);
    auto kernel = std::make_shared<LoadedKernel>();
    kernel->module = module;
    kernel->code = find_kernel(*module->code, desc->pKernelName);
    if (kernel->code == nullptr) refuse(ZE_RESULT_ERROR_INVALID_KERNEL_NAME);
    const auto count = static_cast<size_t>(info_of(*kernel->code).argument_count());
    kernel->arguments.resize(count);
    kernel->slm_bytes.resize(count);
    kernel->is_set.resize(count);
    return new_handle(std::move(kernel), out);
  });
}

ze_result_t zeKernelDestroy(ze_kernel_handle_t kernel) {
  return guarded([&] { remove<LoadedKernel>(kernel); });
}

ze_result_t zeKernelGetName(ze_kernel_handle_t handle, size_t* bytes, char* name) {
  return guarded([&] {
    const auto kernel = get<LoadedKernel>(handle);
    require(bytes);
    const std::string& text = info_of(*kernel->code).name;
    if (name != nullptr) {
      if (*bytes < text.size() + 1) refuse(ZE_RESULT_ERROR_INVALID_SIZE);
      std::memcpy(name, text.c_str(), text.size() + 1);
    }
    *bytes = text.size() + 1;
  });
}

ze_result_t zeKernelGetProperties(ze_kernel_handle_t handle, ze_kernel_properties_t* p) {
  return guarded([&] {
    const auto kernel = get<LoadedKernel>(handle);
    require(p);
    const KernelInfo& info = info_of(*kernel->code);
    const auto simd = static_cast<uint32_t>(info.simd_size);
    auto required = [&](size_t i) {
      return i < info.required_group_size.size() ? info.required_group_size[i] : 0;
    };
    p->numKernelArgs = static_cast<uint32_t>(info.argument_count());
    p->requiredGroupSizeX = required(0);
    p->requiredGroupSizeY = required(1);
    p->requiredGroupSizeZ = required(2);
    p->requiredNumSubGroups = 0;
    p->requiredSubgroupSize = static_cast<uint32_t>(info.required_sub_group_size);
    p->maxSubgroupSize = simd;
    p->maxNumSubgroups = max_group_size(*kernel) / simd;
    p->localMemSize = info.slm_size;
    p->privateMemSize = info.private_bytes;
    p->spillMemSize = info.spill_bytes;
    std::memset(p->uuid, 0, sizeof p->uuid);
    for_each_extension(p->pNext, [&](Extensible& e) {
      if (e.stype == ZE_STRUCTURE_TYPE_KERNEL_MAX_GROUP_SIZE_EXT_PROPERTIES) {
        static_cast<ze_kernel_max_group_size_properties_ext_t&>(e).maxGroupSize =
            max_group_size(*kernel);
      }
      if (e.stype == ZE_STRUCTURE_TYPE_KERNEL_PREFERRED_GROUP_SIZE_PROPERTIES) {
        static_cast<ze_kernel_preferred_group_size_properties_t&>(e).preferredMultiple = simd;
      }
    });
  });
}

ze_result_t zeKernelSetGroupSize(ze_kernel_handle_t handle, uint32_t x, uint32_t y, uint32_t z) {
  return guarded([&] {
    const auto kernel = get<LoadedKernel>(handle);
    const std::array<uint32_t, 3> size{x, y, z};
    if (uint64_t{x} * y * z == 0) refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT);
    const auto& required = info_of(*kernel->code).required_group_size;
    if (required.size() == 3 && !std::equal(size.begin(), size.end(), required.begin())) {
      refuse(ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION);
    }
    kernel->local = size;
  });
}

// The largest divisors of the global sizes that fit, x first.
ze_result_t zeKernelSuggestGroupSize(ze_kernel_handle_t handle, uint32_t x, uint32_t y, uint32_t z,
                                     uint32_t* gx, uint32_t* gy, uint32_t* gz) {
  return guarded([&] {
    const auto kernel = get<LoadedKernel>(handle);
    require(gx);
    require(gy);
    require(gz);
    uint32_t room = std::min(max_group_size(*kernel), 256u);
    auto divisor = [&](uint32_t size) {
      uint32_t best = std::min(std::max(size, 1u), room);
      while (size != 0 && size % best != 0) --best;
      room /= best;
      return best;
    };
    *gx = divisor(x);
    *gy = divisor(y);
    *gz = divisor(z);
  });
}

ze_result_t zeKernelSuggestMaxCooperativeGroupCount(ze_kernel_handle_t handle, uint32_t* count) {
  return guarded([&] {
    const auto kernel = get<LoadedKernel>(handle);
    require(count);
    const KernelInfo& info = info_of(*kernel->code);
    const uint32_t lanes = kernel->local[0] * kernel->local[1] * kernel->local[2];
    const auto simd = static_cast<uint32_t>(info.simd_size);
    const uint32_t threads = std::max((lanes + simd - 1) / simd, 1u);
    *count =
        model_of(*kernel).cores() * (model_of(*kernel).group_threads(info.grf_count) / threads);
  });
}

ze_result_t zeKernelSetArgumentValue(ze_kernel_handle_t handle, uint32_t index, size_t bytes,
                                     const void* value) {
  return guarded([&] { set_argument(*get<LoadedKernel>(handle), index, bytes, value); });
}

ze_result_t zeKernelSetGlobalOffsetExp(ze_kernel_handle_t handle, uint32_t x, uint32_t y,
                                       uint32_t z) {
  return guarded([&] { get<LoadedKernel>(handle)->offset = {x, y, z}; });
}

ze_result_t zeKernelSetIndirectAccess(ze_kernel_handle_t handle,
                                      ze_kernel_indirect_access_flags_t flags) {
  return guarded([&] { get<LoadedKernel>(handle)->indirect_access = flags; });
}

ze_result_t zeKernelGetIndirectAccess(ze_kernel_handle_t handle,
                                      ze_kernel_indirect_access_flags_t* flags) {
  return guarded([&] {
    const auto kernel = get<LoadedKernel>(handle);
    require(flags);
    *flags = kernel->indirect_access;
  });
}

ze_result_t zeKernelGetSourceAttributes(ze_kernel_handle_t handle, uint32_t* bytes, char** text) {
  return guarded([&] {
    get<LoadedKernel>(handle);
    require(bytes);
    if (text != nullptr && *text != nullptr && *bytes != 0) (*text)[0] = 0;
    *bytes = 1;
  });
}

ze_result_t zeKernelSetCacheConfig(ze_kernel_handle_t handle, ze_cache_config_flags_t) {
  return guarded([&] { get<LoadedKernel>(handle); });
}

ze_result_t zeCommandListAppendLaunchKernel(ze_command_list_handle_t list,
                                            ze_kernel_handle_t kernel,
                                            const ze_group_count_t* groups,
                                            ze_event_handle_t signal, uint32_t wait_count,
                                            ze_event_handle_t* waits) {
  return guarded([&] { return append_launch(list, kernel, groups, signal, wait_count, waits); });
}

// All groups of a launch run to their end one way or another; those of a cooperative one may wait
// for each other, which the simulator finds out when they do.
ze_result_t zeCommandListAppendLaunchCooperativeKernel(
    ze_command_list_handle_t list, ze_kernel_handle_t kernel, const ze_group_count_t* groups,
    ze_event_handle_t signal, uint32_t wait_count, ze_event_handle_t* waits) {
  return guarded([&] { return append_launch(list, kernel, groups, signal, wait_count, waits); });
}

}  // extern "C"
#pragma GCC visibility pop
