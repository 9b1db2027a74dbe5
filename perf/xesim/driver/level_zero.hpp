// The part of Level Zero that the driver speaks: its types, structures and numbers, as a program
// that was compiled with Level Zero's own headers passes them. Names are those of the Level Zero
// specification, where they can be looked up; what the driver does not touch is left
// out, or left without members. Functions have no declarations: the files api_*.cpp define them.
#pragma once

#include <cstddef>
#include <cstdint>

// Versions of the API and of extensions.
using ze_api_version_t = uint32_t;
constexpr ze_api_version_t ze_version(uint32_t major, uint32_t minor) {
  return major << 16 | minor;
}

using ze_driver_handle_t = struct _ze_driver_handle_t*;
using ze_device_handle_t = struct _ze_device_handle_t*;
using ze_context_handle_t = struct _ze_context_handle_t*;
using ze_command_queue_handle_t = struct _ze_command_queue_handle_t*;
using ze_command_list_handle_t = struct _ze_command_list_handle_t*;
using ze_event_pool_handle_t = struct _ze_event_pool_handle_t*;
using ze_event_handle_t = struct _ze_event_handle_t*;
using ze_fence_handle_t = struct _ze_fence_handle_t*;
using ze_module_handle_t = struct _ze_module_handle_t*;
using ze_module_build_log_handle_t = struct _ze_module_build_log_handle_t*;
using ze_kernel_handle_t = struct _ze_kernel_handle_t*;
struct ze_ipc_mem_handle_t {
  char data[64];
};
struct ze_ipc_event_pool_handle_t {
  char data[64];
};

using ze_bool_t = uint8_t;

enum ze_result_t : uint32_t {
  ZE_RESULT_SUCCESS = 0,
  ZE_RESULT_NOT_READY = 1,
  ZE_RESULT_ERROR_DEVICE_LOST = 0x70000001,
  ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY = 0x70000002,
  ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY = 0x70000003,
  ZE_RESULT_ERROR_MODULE_BUILD_FAILURE = 0x70000004,
  ZE_RESULT_ERROR_UNINITIALIZED = 0x78000001,
  ZE_RESULT_ERROR_UNSUPPORTED_FEATURE = 0x78000003,
  ZE_RESULT_ERROR_INVALID_ARGUMENT = 0x78000004,
  ZE_RESULT_ERROR_INVALID_NULL_HANDLE = 0x78000005,
  ZE_RESULT_ERROR_INVALID_NULL_POINTER = 0x78000007,
  ZE_RESULT_ERROR_INVALID_SIZE = 0x78000008,
  ZE_RESULT_ERROR_UNSUPPORTED_SIZE = 0x78000009,
  ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT = 0x7800000a,
  ZE_RESULT_ERROR_INVALID_ENUMERATION = 0x7800000c,
  ZE_RESULT_ERROR_INVALID_NATIVE_BINARY = 0x7800000f,
  ZE_RESULT_ERROR_INVALID_GLOBAL_NAME = 0x78000010,
  ZE_RESULT_ERROR_INVALID_KERNEL_NAME = 0x78000011,
  ZE_RESULT_ERROR_INVALID_FUNCTION_NAME = 0x78000012,
  ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION = 0x78000013,
  ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX = 0x78000015,
  ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE = 0x78000016,
  ZE_RESULT_ERROR_UNKNOWN = 0x7ffffffe,
};

// What every extensible structure begins with: its number, and the structure chained behind it.
enum ze_structure_type_t : uint32_t {
  ZE_STRUCTURE_TYPE_KERNEL_PREFERRED_GROUP_SIZE_PROPERTIES = 0x21,
  ZE_STRUCTURE_TYPE_FLOAT_ATOMIC_EXT_PROPERTIES = 0x10003,
  ZE_STRUCTURE_TYPE_EU_COUNT_EXT = 0x10005,
  ZE_STRUCTURE_TYPE_DEVICE_MEMORY_EXT_PROPERTIES = 0x1000e,
  ZE_STRUCTURE_TYPE_DEVICE_IP_VERSION_EXT = 0x1000f,
  ZE_STRUCTURE_TYPE_KERNEL_MAX_GROUP_SIZE_EXT_PROPERTIES = 0x10013,
  ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXP_DESC = 0x20001,
  ZE_STRUCTURE_TYPE_MODULE_PROGRAM_EXP_DESC = 0x20002,
  ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2 = 0x20006,  // timerResolution in cycles per second
  ZE_STRUCTURE_TYPE_COUNTER_BASED_EVENT_POOL_EXP_DESC = 0x20014,
};
struct Extensible {
  ze_structure_type_t stype;
  void* pNext;
};

// Drivers.
using ze_init_flags_t = uint32_t;
struct ze_init_driver_type_desc_t;
struct ze_driver_properties_t : Extensible {
  uint8_t uuid[16];
  uint32_t driverVersion;
};
struct ze_driver_ipc_properties_t : Extensible {
  uint32_t flags;
};
struct ze_driver_extension_properties_t {
  char name[256];
  uint32_t version;
};

// Devices.
enum ze_device_type_t : uint32_t { ZE_DEVICE_TYPE_GPU = 1 };
enum : uint32_t {
  ZE_DEVICE_PROPERTY_FLAG_INTEGRATED = 1 << 0,
  ZE_DEVICE_PROPERTY_FLAG_ONDEMANDPAGING = 1 << 3
};
struct ze_device_properties_t : Extensible {
  ze_device_type_t type;
  uint32_t vendorId, deviceId;
  uint32_t flags;
  uint32_t subdeviceId, coreClockRate;
  uint64_t maxMemAllocSize;
  uint32_t maxHardwareContexts, maxCommandQueuePriority;
  uint32_t numThreadsPerEU, physicalEUSimdWidth, numEUsPerSubslice, numSubslicesPerSlice, numSlices;
  uint64_t timerResolution;
  uint32_t timestampValidBits, kernelTimestampValidBits;
  uint8_t uuid[16];
  char name[256];
};
struct ze_device_ip_version_ext_t : Extensible {
  uint32_t ipVersion;
};
struct ze_eu_count_ext_t : Extensible {
  uint32_t numTotalEUs;
};
struct ze_device_compute_properties_t : Extensible {
  uint32_t maxTotalGroupSize, maxGroupSizeX, maxGroupSizeY, maxGroupSizeZ;
  uint32_t maxGroupCountX, maxGroupCountY, maxGroupCountZ;
  uint32_t maxSharedLocalMemory, numSubGroupSizes, subGroupSizes[8];
};

enum : uint32_t {
  ZE_DEVICE_MODULE_FLAG_FP16 = 1 << 0,
  ZE_DEVICE_MODULE_FLAG_FP64 = 1 << 1,
  ZE_DEVICE_MODULE_FLAG_INT64_ATOMICS = 1 << 2,
  ZE_DEVICE_MODULE_FLAG_DP4A = 1 << 3,
};
using ze_device_fp_flags_t = uint32_t;
enum : uint32_t {
  ZE_DEVICE_FP_FLAG_DENORM = 1 << 0,
  ZE_DEVICE_FP_FLAG_INF_NAN = 1 << 1,
  ZE_DEVICE_FP_FLAG_ROUND_TO_NEAREST = 1 << 2,
  ZE_DEVICE_FP_FLAG_ROUND_TO_ZERO = 1 << 3,
  ZE_DEVICE_FP_FLAG_ROUND_TO_INF = 1 << 4,
  ZE_DEVICE_FP_FLAG_FMA = 1 << 5,
  ZE_DEVICE_FP_FLAG_ROUNDED_DIVIDE_SQRT = 1 << 6,
};
struct ze_device_module_properties_t : Extensible {
  uint32_t spirvVersionSupported, flags;
  ze_device_fp_flags_t fp16flags, fp32flags, fp64flags;
  uint32_t maxArgumentsSize, printfBufferSize;
  uint8_t nativeKernelSupported[16];
};
using ze_device_fp_atomic_ext_flags_t = uint32_t;
enum : uint32_t {
  ZE_DEVICE_FP_ATOMIC_EXT_FLAG_GLOBAL_LOAD_STORE = 1 << 0,
  ZE_DEVICE_FP_ATOMIC_EXT_FLAG_GLOBAL_ADD = 1 << 1,
  ZE_DEVICE_FP_ATOMIC_EXT_FLAG_GLOBAL_MIN_MAX = 1 << 2,
  ZE_DEVICE_FP_ATOMIC_EXT_FLAG_LOCAL_LOAD_STORE = 1 << 16,
  ZE_DEVICE_FP_ATOMIC_EXT_FLAG_LOCAL_MIN_MAX = 1 << 18,
};
struct ze_float_atomic_ext_properties_t : Extensible {
  ze_device_fp_atomic_ext_flags_t fp16Flags, fp32Flags, fp64Flags;
};

enum : uint32_t {
  ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE = 1 << 0,
  ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY = 1 << 1,
  ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COOPERATIVE_KERNELS = 1 << 2,
};
struct ze_command_queue_group_properties_t : Extensible {
  uint32_t flags;
  size_t maxMemoryFillPatternSize;
  uint32_t numQueues;
};
struct ze_device_memory_properties_t : Extensible {
  uint32_t flags, maxClockRate, maxBusWidth;
  uint64_t totalSize;
  char name[256];
};
struct ze_device_memory_ext_properties_t : Extensible {
  uint32_t type;  // 0: HBM ... 8: GDDR6
  uint64_t physicalSize;
  uint32_t readBandwidth, writeBandwidth, bandwidthUnit;
};
using ze_memory_access_cap_flags_t = uint32_t;
enum : uint32_t {
  ZE_MEMORY_ACCESS_CAP_FLAG_RW = 1 << 0,
  ZE_MEMORY_ACCESS_CAP_FLAG_ATOMIC = 1 << 1,
  ZE_MEMORY_ACCESS_CAP_FLAG_CONCURRENT = 1 << 2,
  ZE_MEMORY_ACCESS_CAP_FLAG_CONCURRENT_ATOMIC = 1 << 3,
};
struct ze_device_memory_access_properties_t : Extensible {
  ze_memory_access_cap_flags_t hostAllocCapabilities, deviceAllocCapabilities;
  ze_memory_access_cap_flags_t sharedSingleDeviceAllocCapabilities;
  ze_memory_access_cap_flags_t sharedCrossDeviceAllocCapabilities;
  ze_memory_access_cap_flags_t sharedSystemAllocCapabilities;
};
struct ze_device_cache_properties_t : Extensible {
  uint32_t flags;
  size_t cacheSize;
};
struct ze_device_image_properties_t : Extensible {
  uint32_t maxImageDims1D, maxImageDims2D, maxImageDims3D;
  uint64_t maxImageBufferSize;
  uint32_t maxImageArraySlices, maxSamplers, maxReadImageArgs, maxWriteImageArgs;
};
struct ze_device_external_memory_properties_t : Extensible {
  uint32_t memoryAllocationImportTypes, memoryAllocationExportTypes;
  uint32_t imageImportTypes, imageExportTypes;
};
struct ze_device_p2p_properties_t : Extensible {
  uint32_t flags;
};
struct ze_pci_address_ext_t {
  uint32_t domain, bus, device, function;
};
struct ze_pci_speed_ext_t {
  int32_t genVersion, width;
  int64_t maxBandwidth;
};
struct ze_pci_ext_properties_t : Extensible {
  ze_pci_address_ext_t address;
  ze_pci_speed_ext_t maxSpeed;
};

// Memory.
struct ze_context_desc_t;
struct ze_device_mem_alloc_desc_t : Extensible {
  uint32_t flags, ordinal;
};
struct ze_host_mem_alloc_desc_t : Extensible {
  uint32_t flags;
};
struct ze_memory_free_ext_desc_t : Extensible {
  uint32_t freePolicy;
};
enum ze_memory_type_t : uint32_t {
  ZE_MEMORY_TYPE_UNKNOWN = 0,
  ZE_MEMORY_TYPE_HOST = 1,
  ZE_MEMORY_TYPE_DEVICE = 2,
  ZE_MEMORY_TYPE_SHARED = 3,
};
struct ze_memory_allocation_properties_t : Extensible {
  ze_memory_type_t type;
  uint64_t id, pageSize;
};
using ze_ipc_memory_flags_t = uint32_t;
using ze_memory_advice_t = uint32_t;
struct ze_copy_region_t {
  uint32_t originX, originY, originZ, width, height, depth;
};

// Command lists and queues.
struct ze_command_list_desc_t : Extensible {
  uint32_t commandQueueGroupOrdinal, flags;
};
enum ze_command_queue_mode_t : uint32_t { ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS = 1 };
struct ze_command_queue_desc_t : Extensible {
  uint32_t ordinal, index, flags;
  ze_command_queue_mode_t mode;
  uint32_t priority;
};

// Events and fences.
struct ze_event_pool_desc_t : Extensible {
  uint32_t flags, count;
};
struct ze_event_desc_t : Extensible {
  uint32_t index, signal, wait;
};
struct ze_kernel_timestamp_data_t {
  uint64_t kernelStart, kernelEnd;
};
struct ze_kernel_timestamp_result_t {
  ze_kernel_timestamp_data_t global, context;
};
enum : uint32_t { ZE_FENCE_FLAG_SIGNALED = 1 << 0 };
struct ze_fence_desc_t : Extensible {
  uint32_t flags;
};

// Modules and kernels.
enum ze_module_format_t : uint32_t { ZE_MODULE_FORMAT_IL_SPIRV = 0, ZE_MODULE_FORMAT_NATIVE = 1 };
struct ze_module_constants_t {
  uint32_t numConstants;
  const uint32_t* pConstantIds;
  const void** pConstantValues;
};
struct ze_module_desc_t : Extensible {
  ze_module_format_t format;
  size_t inputSize;
  const uint8_t* pInputModule;
  const char* pBuildFlags;
  const ze_module_constants_t* pConstants;
};
struct ze_module_program_exp_desc_t : Extensible {
  uint32_t count;
  const size_t* inputSizes;
  const uint8_t** pInputModules;
  const char** pBuildFlags;
  const ze_module_constants_t** pConstants;
};
struct ze_module_properties_t : Extensible {
  uint32_t flags;
};
struct ze_kernel_desc_t : Extensible {
  uint32_t flags;
  const char* pKernelName;
};
struct ze_kernel_properties_t : Extensible {
  uint32_t numKernelArgs, requiredGroupSizeX, requiredGroupSizeY, requiredGroupSizeZ;
  uint32_t requiredNumSubGroups, requiredSubgroupSize, maxSubgroupSize, maxNumSubgroups;
  uint32_t localMemSize, privateMemSize, spillMemSize;
  uint8_t uuid[32];  // of the kernel, then of the module
};
struct ze_kernel_preferred_group_size_properties_t : Extensible {
  uint32_t preferredMultiple;
};
struct ze_kernel_max_group_size_properties_ext_t : Extensible {
  uint32_t maxGroupSize;
};
using ze_kernel_indirect_access_flags_t = uint32_t;
using ze_cache_config_flags_t = uint32_t;
struct ze_group_count_t {
  uint32_t groupCountX, groupCountY, groupCountZ;
};

namespace xesim::driver {

// Calls `visit` for each structure chained behind `next`.
template <class Visit>
void for_each_extension(void* next, Visit visit) {
  for (auto* e = static_cast<Extensible*>(next); e != nullptr;
       e = static_cast<Extensible*>(e->pNext)) {
    visit(*e);
  }
}

}  // namespace xesim::driver
