// Questions about devices; the answers are in devices.cpp.
#include <cstring>

#include "driver/objects.hpp"
#include "driver/scheduler.hpp"

using namespace xesim::driver;

namespace {

template <class T>
const DeviceModel& model_of(ze_device_handle_t handle, T* out) {
  const DeviceModel& model = *device_of(handle).model;
  require(out);
  return model;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

ze_result_t zeDeviceGet(ze_driver_handle_t driver, uint32_t* count, ze_device_handle_t* out) {
  return guarded([&] {
    if (driver == nullptr) refuse(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
    if (driver != driver_handle()) refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT);
    return fill_list(static_cast<uint32_t>(devices().size()), count, out,
                     [](uint32_t i) { return handle_of(*devices()[i]); });
  });
}

ze_result_t zeDeviceGetSubDevices(ze_device_handle_t handle, uint32_t* count, ze_device_handle_t*) {
  return guarded([&] {
    model_of(handle, count);
    *count = 0;
  });
}

ze_result_t zeDeviceGetRootDevice(ze_device_handle_t handle, ze_device_handle_t* root) {
  return guarded([&] {
    model_of(handle, root);
    *root = nullptr;
  });
}

ze_result_t zeDeviceGetProperties(ze_device_handle_t handle, ze_device_properties_t* p) {
  return guarded([&] {
    const DeviceModel& model = model_of(handle, p);
    p->type = ZE_DEVICE_TYPE_GPU;
    p->vendorId = 0x8086;
    p->deviceId = model.pci_device;
    p->flags = ZE_DEVICE_PROPERTY_FLAG_ONDEMANDPAGING |
               (model.integrated ? +ZE_DEVICE_PROPERTY_FLAG_INTEGRATED : 0);
    p->subdeviceId = 0;
    p->coreClockRate = model.clock_mhz;
    p->maxMemAllocSize = model.max_alloc_bytes;
    p->maxHardwareContexts = 64 << 10;
    p->maxCommandQueuePriority = 0;
    p->numThreadsPerEU = model.threads_per_xve;
    p->physicalEUSimdWidth = model.simd_width;
    p->numEUsPerSubslice = model.xve_per_core;
    p->numSubslicesPerSlice = model.cores_per_slice;
    p->numSlices = model.slices;
    // now_ns() counts nanoseconds; the newer form of the structure asks for ticks a second.
    p->timerResolution = p->stype == ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2 ? 1000000000 : 1;
    p->timestampValidBits = p->kernelTimestampValidBits = 64;
    std::memset(p->uuid, 0, sizeof p->uuid);
    std::memcpy(p->uuid, &model.pci_device, 4);
    std::memcpy(p->uuid + 4, &device_of(handle).index, 4);
    std::memcpy(p->uuid + 8, "xesim", 5);
    std::snprintf(p->name, sizeof p->name, "%s", model.name);
    for_each_extension(p->pNext, [&](Extensible& e) {
      if (e.stype == ZE_STRUCTURE_TYPE_DEVICE_IP_VERSION_EXT)
        static_cast<ze_device_ip_version_ext_t&>(e).ipVersion = model.ip_version;
      if (e.stype == ZE_STRUCTURE_TYPE_EU_COUNT_EXT) {
        static_cast<ze_eu_count_ext_t&>(e).numTotalEUs = model.cores() * model.xve_per_core;
      }
    });
  });
}

ze_result_t zeDeviceGetComputeProperties(ze_device_handle_t handle,
                                         ze_device_compute_properties_t* p) {
  return guarded([&] {
    const DeviceModel& model = model_of(handle, p);
    p->maxTotalGroupSize = p->maxGroupSizeX = p->maxGroupSizeY = p->maxGroupSizeZ =
        model.max_group_size;
    p->maxGroupCountX = p->maxGroupCountY = p->maxGroupCountZ = UINT32_MAX;
    p->maxSharedLocalMemory = model.slm_bytes;
    p->numSubGroupSizes = static_cast<uint32_t>(model.sub_group_sizes.size());
    std::memset(p->subGroupSizes, 0, sizeof p->subGroupSizes);
    std::copy(model.sub_group_sizes.begin(), model.sub_group_sizes.end(), p->subGroupSizes);
  });
}

ze_result_t zeDeviceGetModuleProperties(ze_device_handle_t handle,
                                        ze_device_module_properties_t* p) {
  return guarded([&] {
    const DeviceModel& model = model_of(handle, p);
    constexpr ze_device_fp_flags_t kIeee =
        ZE_DEVICE_FP_FLAG_DENORM | ZE_DEVICE_FP_FLAG_INF_NAN | ZE_DEVICE_FP_FLAG_ROUND_TO_NEAREST |
        ZE_DEVICE_FP_FLAG_ROUND_TO_ZERO | ZE_DEVICE_FP_FLAG_ROUND_TO_INF | ZE_DEVICE_FP_FLAG_FMA;
    p->spirvVersionSupported = ze_version(1, 4);
    p->flags = ZE_DEVICE_MODULE_FLAG_FP16 | ZE_DEVICE_MODULE_FLAG_INT64_ATOMICS |
               ZE_DEVICE_MODULE_FLAG_DP4A | (model.fp64 ? +ZE_DEVICE_MODULE_FLAG_FP64 : 0);
    p->fp16flags = kIeee;
    p->fp32flags = kIeee | ZE_DEVICE_FP_FLAG_ROUNDED_DIVIDE_SQRT;
    p->fp64flags = model.fp64 ? kIeee | ZE_DEVICE_FP_FLAG_ROUNDED_DIVIDE_SQRT : 0;
    p->maxArgumentsSize = 2048;  // as the driver says
    p->printfBufferSize = 4 << 20;
    std::memset(p->nativeKernelSupported, 0, sizeof p->nativeKernelSupported);
    std::memcpy(p->nativeKernelSupported, "xesim zebin", 11);
    for_each_extension(p->pNext, [&](Extensible& e) {
      if (e.stype != ZE_STRUCTURE_TYPE_FLOAT_ATOMIC_EXT_PROPERTIES) return;
      auto& atomics = static_cast<ze_float_atomic_ext_properties_t&>(e);
      constexpr ze_device_fp_atomic_ext_flags_t kLoadStore =
          ZE_DEVICE_FP_ATOMIC_EXT_FLAG_GLOBAL_LOAD_STORE |
          ZE_DEVICE_FP_ATOMIC_EXT_FLAG_LOCAL_LOAD_STORE;
      constexpr ze_device_fp_atomic_ext_flags_t kMinMax =
          ZE_DEVICE_FP_ATOMIC_EXT_FLAG_GLOBAL_MIN_MAX | ZE_DEVICE_FP_ATOMIC_EXT_FLAG_LOCAL_MIN_MAX;
      atomics.fp16Flags = kLoadStore | kMinMax;
      atomics.fp32Flags = kLoadStore | kMinMax | ZE_DEVICE_FP_ATOMIC_EXT_FLAG_GLOBAL_ADD;
      atomics.fp64Flags = model.fp64 ? atomics.fp32Flags : 0;
    });
  });
}

ze_result_t zeDeviceGetCommandQueueGroupProperties(ze_device_handle_t handle, uint32_t* count,
                                                   ze_command_queue_group_properties_t* p) {
  return guarded([&] {
    model_of(handle, count);
    if (*count == 0 || p == nullptr) {
      *count = 1;
      return;
    }
    *count = 1;
    p->flags = ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE |
               ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY |
               ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COOPERATIVE_KERNELS;
    p->maxMemoryFillPatternSize = SIZE_MAX;
    p->numQueues = 1;
  });
}

ze_result_t zeDeviceGetMemoryProperties(ze_device_handle_t handle, uint32_t* count,
                                        ze_device_memory_properties_t* p) {
  return guarded([&] {
    const DeviceModel& model = model_of(handle, count);
    const bool ask = *count == 0 || p == nullptr;
    *count = 1;
    if (ask) return;
    p->flags = 0;
    p->maxClockRate = model.memory_mhz;
    p->maxBusWidth = model.memory_bus_bits;
    p->totalSize = model.memory_bytes;
    std::snprintf(p->name, sizeof p->name, "%s", model.memory_name);
    for_each_extension(p->pNext, [&](Extensible& e) {
      if (e.stype != ZE_STRUCTURE_TYPE_DEVICE_MEMORY_EXT_PROPERTIES) return;
      auto& memory = static_cast<ze_device_memory_ext_properties_t&>(e);
      memory.type = model.memory_type;
      memory.physicalSize = model.memory_bytes;
      memory.readBandwidth = memory.writeBandwidth = model.bandwidth_gb_s;
      memory.bandwidthUnit = 1;  // bytes per nanosecond
    });
  });
}

ze_result_t zeDeviceGetMemoryAccessProperties(ze_device_handle_t handle,
                                              ze_device_memory_access_properties_t* p) {
  return guarded([&] {
    model_of(handle, p);
    constexpr ze_memory_access_cap_flags_t kAll =
        ZE_MEMORY_ACCESS_CAP_FLAG_RW | ZE_MEMORY_ACCESS_CAP_FLAG_ATOMIC |
        ZE_MEMORY_ACCESS_CAP_FLAG_CONCURRENT | ZE_MEMORY_ACCESS_CAP_FLAG_CONCURRENT_ATOMIC;
    p->hostAllocCapabilities = kAll;
    p->deviceAllocCapabilities = kAll;
    p->sharedSingleDeviceAllocCapabilities = kAll;
    // All simulated devices share one address space, but real cards of these families do not
    // promise this.
    p->sharedCrossDeviceAllocCapabilities = 0;
    p->sharedSystemAllocCapabilities = 0;
  });
}

ze_result_t zeDeviceGetCacheProperties(ze_device_handle_t handle, uint32_t* count,
                                       ze_device_cache_properties_t* p) {
  return guarded([&] {
    const DeviceModel& model = model_of(handle, count);
    const bool ask = *count == 0 || p == nullptr;
    *count = 1;
    if (ask) return;
    p->flags = 0;
    p->cacheSize = model.cache_bytes;
  });
}

ze_result_t zeDeviceGetImageProperties(ze_device_handle_t handle, ze_device_image_properties_t* p) {
  return guarded([&] {
    model_of(handle, p);
    // No images: everything is zero.
    p->maxImageDims1D = p->maxImageDims2D = p->maxImageDims3D = p->maxImageArraySlices = 0;
    p->maxImageBufferSize = 0;
    p->maxSamplers = p->maxReadImageArgs = p->maxWriteImageArgs = 0;
  });
}

ze_result_t zeDeviceGetExternalMemoryProperties(ze_device_handle_t handle,
                                                ze_device_external_memory_properties_t* p) {
  return guarded([&] {
    model_of(handle, p);
    p->memoryAllocationImportTypes = p->memoryAllocationExportTypes = p->imageImportTypes =
        p->imageExportTypes = 0;
  });
}

ze_result_t zeDeviceGetP2PProperties(ze_device_handle_t handle, ze_device_handle_t peer,
                                     ze_device_p2p_properties_t* p) {
  return guarded([&] {
    model_of(handle, p);
    device_of(peer);
    p->flags = 0;
  });
}

ze_result_t zeDeviceCanAccessPeer(ze_device_handle_t handle, ze_device_handle_t peer,
                                  ze_bool_t* yes) {
  return guarded([&] {
    model_of(handle, yes);
    *yes = &device_of(handle) == &device_of(peer);
  });
}

ze_result_t zeDeviceGetStatus(ze_device_handle_t handle) {
  return guarded([&] { device_of(handle); });
}

ze_result_t zeDeviceGetGlobalTimestamps(ze_device_handle_t handle, uint64_t* host,
                                        uint64_t* device) {
  return guarded([&] {
    model_of(handle, host);
    require(device);
    *host = *device = now_ns();
  });
}

ze_result_t zeDevicePciGetPropertiesExt(ze_device_handle_t handle, ze_pci_ext_properties_t* p) {
  return guarded([&] {
    model_of(handle, p);
    p->address = {0, device_of(handle).index + 1, 0, 0};
    p->maxSpeed = {-1, -1, -1};
  });
}

ze_result_t zeDeviceSynchronize(ze_device_handle_t handle) {
  return guarded([&] { return Scheduler::instance().wait(device_of(handle)); });
}

}  // extern "C"
#pragma GCC visibility pop
