// Contexts and USM allocations.
#include <algorithm>

#include "driver/host_access.hpp"
#include "driver/objects.hpp"
#include "driver/scheduler.hpp"
#include "machine/checks.hpp"
#include "machine/memory.hpp"

using namespace xesim;
using namespace xesim::driver;

namespace {

constexpr size_t kPage = 4096, kDevicePage = 64 << 10;  // device memory comes in 64 KiB pages

// Adds to the bytes that count against the device's memory; refuses what does not fit.
void charge(Device& device, size_t bytes, void* extensions) {
  bool relaxed = false;
  for_each_extension(extensions, [&](Extensible& e) {
    relaxed |= e.stype == ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXP_DESC;
  });
  const DeviceModel& model = *device.model;
  if (bytes > model.max_alloc_bytes && !relaxed) refuse(ZE_RESULT_ERROR_UNSUPPORTED_SIZE);
  if (bytes > model.memory_bytes) refuse(ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
  if (device.allocated.fetch_add(bytes) + bytes <= model.memory_bytes) return;
  device.allocated -= bytes;
  refuse(ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
}

void allocate(MemoryKind kind, Device* device, size_t bytes, size_t alignment, void* extensions,
              void** out) {
  require(out);
  if (bytes == 0) refuse(ZE_RESULT_ERROR_UNSUPPORTED_SIZE);
  if ((alignment & (alignment - 1)) != 0) refuse(ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT);
  const bool hide = kind == MemoryKind::kDevice && current_checks().host;
  if (hide) explain_host_accesses();
  const size_t least = kind == MemoryKind::kHost ? kPage : kDevicePage;
  if (device != nullptr) charge(*device, bytes, extensions);
  try {
    const Allocation* a =
        Memory::instance().allocate(bytes, std::max(alignment, least), kind, device, hide);
    *out = reinterpret_cast<void*>(a->address);
  } catch (const Fault& fault) {
    if (device != nullptr) device->allocated -= bytes;
    report(fault.what());
    refuse(ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
  }
}

void free_memory(const void* pointer) {
  require(pointer);
  const auto address = reinterpret_cast<uint64_t>(pointer);
  Scheduler::instance().exclusively([&] {
    const Allocation* a = Memory::instance().find(address, 1);
    auto* device = a == nullptr ? nullptr : static_cast<Device*>(a->owner);
    const size_t bytes = a == nullptr ? 0 : a->bytes;
    try {
      Memory::instance().release(address);
    } catch (const Fault& fault) {
      report(fault.what());
      refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT);
    }
    if (device != nullptr) device->allocated -= bytes;
  });
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

ze_result_t zeContextCreate(ze_driver_handle_t driver, const ze_context_desc_t* desc,
                            ze_context_handle_t* out) {
  return guarded([&] {
    if (driver == nullptr) refuse(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
    require(desc);
    require(out);
    return new_handle(std::make_shared<Context>(), out);
  });
}

ze_result_t zeContextCreateEx(ze_driver_handle_t driver, const ze_context_desc_t* desc, uint32_t,
                              ze_device_handle_t*, ze_context_handle_t* out) {
  return zeContextCreate(driver, desc, out);
}

ze_result_t zeContextDestroy(ze_context_handle_t context) {
  return guarded([&] { remove<Context>(context); });
}

ze_result_t zeContextGetStatus(ze_context_handle_t context) {
  return guarded([&] { get<Context>(context); });
}

ze_result_t zeContextMakeMemoryResident(ze_context_handle_t context, ze_device_handle_t device,
                                        void* pointer, size_t) {
  return guarded([&] {
    get<Context>(context);
    device_of(device);
    require(pointer);
  });
}

ze_result_t zeContextEvictMemory(ze_context_handle_t context, ze_device_handle_t device,
                                 void* pointer, size_t bytes) {
  return zeContextMakeMemoryResident(context, device, pointer, bytes);
}

ze_result_t zeContextSystemBarrier(ze_context_handle_t context, ze_device_handle_t device) {
  return guarded([&] {
    get<Context>(context);
    device_of(device);
  });
}

ze_result_t zeMemAllocDevice(ze_context_handle_t context, const ze_device_mem_alloc_desc_t* desc,
                             size_t bytes, size_t alignment, ze_device_handle_t device,
                             void** out) {
  return guarded([&] {
    get<Context>(context);
    require(desc);
    allocate(MemoryKind::kDevice, &device_of(device), bytes, alignment, desc->pNext, out);
  });
}

ze_result_t zeMemAllocShared(ze_context_handle_t context, const ze_device_mem_alloc_desc_t* desc,
                             const ze_host_mem_alloc_desc_t* host_desc, size_t bytes,
                             size_t alignment, ze_device_handle_t device, void** out) {
  return guarded([&] {
    get<Context>(context);
    require(desc);
    require(host_desc);
    Device* owner = device == nullptr ? nullptr : &device_of(device);
    allocate(MemoryKind::kShared, owner, bytes, alignment, desc->pNext, out);
  });
}

ze_result_t zeMemAllocHost(ze_context_handle_t context, const ze_host_mem_alloc_desc_t* desc,
                           size_t bytes, size_t alignment, void** out) {
  return guarded([&] {
    get<Context>(context);
    require(desc);
    allocate(MemoryKind::kHost, nullptr, bytes, alignment, desc->pNext, out);
  });
}

ze_result_t zeMemFree(ze_context_handle_t context, void* pointer) {
  return guarded([&] {
    get<Context>(context);
    free_memory(pointer);
  });
}

ze_result_t zeMemFreeExt(ze_context_handle_t context, const ze_memory_free_ext_desc_t* desc,
                         void* pointer) {
  return guarded([&] {
    get<Context>(context);
    require(desc);
    // Both policies, blocking and deferred, let commands that are under way finish first.
    if (desc->freePolicy != 0) Scheduler::instance().run_all();
    free_memory(pointer);
  });
}

ze_result_t zeMemGetAllocProperties(ze_context_handle_t context, const void* pointer,
                                    ze_memory_allocation_properties_t* properties,
                                    ze_device_handle_t* device) {
  return guarded([&] {
    get<Context>(context);
    require(pointer);
    require(properties);
    const Allocation* a = Memory::instance().find(reinterpret_cast<uint64_t>(pointer), 1);
    properties->type = ZE_MEMORY_TYPE_UNKNOWN;
    properties->id = 0;
    properties->pageSize = 0;
    if (device != nullptr) *device = nullptr;
    if (a == nullptr || a->kind == MemoryKind::kInternal) return;
    properties->type = a->kind == MemoryKind::kDevice ? ZE_MEMORY_TYPE_DEVICE
                       : a->kind == MemoryKind::kHost ? ZE_MEMORY_TYPE_HOST
                                                      : ZE_MEMORY_TYPE_SHARED;
    properties->id = a->id;
    properties->pageSize = a->kind == MemoryKind::kHost ? kPage : kDevicePage;
    if (device != nullptr && a->owner != nullptr)
      *device = handle_of(*static_cast<Device*>(a->owner));
  });
}

ze_result_t zeMemGetAddressRange(ze_context_handle_t context, const void* pointer, void** base,
                                 size_t* bytes) {
  return guarded([&] {
    get<Context>(context);
    require(pointer);
    const Allocation* a = Memory::instance().find(reinterpret_cast<uint64_t>(pointer), 1);
    if (a == nullptr) refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT);
    if (base != nullptr) *base = reinterpret_cast<void*>(a->address);
    if (bytes != nullptr) *bytes = a->bytes;
  });
}

// The runtime's allocator insists that these exist; sharing memory between processes is not
// simulated.
ze_result_t zeMemGetIpcHandle(ze_context_handle_t, const void*, ze_ipc_mem_handle_t*) {
  return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
}
ze_result_t zeMemPutIpcHandle(ze_context_handle_t, ze_ipc_mem_handle_t) {
  return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
}
ze_result_t zeMemOpenIpcHandle(ze_context_handle_t, ze_device_handle_t, ze_ipc_mem_handle_t,
                               ze_ipc_memory_flags_t, void**) {
  return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
}
ze_result_t zeMemCloseIpcHandle(ze_context_handle_t, const void*) {
  return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
}

}  // extern "C"
#pragma GCC visibility pop
