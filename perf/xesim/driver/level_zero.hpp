// Level Zero's headers, and what headers older than API 1.17 lack of it. Structures that only newer
// headers define get a layout of their own here; their numbers and members are those of the Level
// Zero specification.
#pragma once

#include <level_zero/ze_api.h>

#include <cstddef>
#include <cstdint>

struct _ze_init_driver_type_desc_t;
typedef struct _ze_init_driver_type_desc_t ze_init_driver_type_desc_t;

extern "C" {
ZE_APIEXPORT ze_result_t ZE_APICALL zeInitDrivers(uint32_t*, ze_driver_handle_t*,
                                                  ze_init_driver_type_desc_t*);
ZE_APIEXPORT ze_result_t ZE_APICALL zeDriverGetLastErrorDescription(ze_driver_handle_t,
                                                                    const char**);
ZE_APIEXPORT ze_result_t ZE_APICALL zeDeviceGetRootDevice(ze_device_handle_t, ze_device_handle_t*);
ZE_APIEXPORT ze_result_t ZE_APICALL zeDeviceSynchronize(ze_device_handle_t);
ZE_APIEXPORT ze_result_t ZE_APICALL zeCommandListHostSynchronize(ze_command_list_handle_t,
                                                                 uint64_t);
ZE_APIEXPORT ze_result_t ZE_APICALL zeCommandListIsImmediate(ze_command_list_handle_t, ze_bool_t*);
ZE_APIEXPORT ze_result_t ZE_APICALL zeCommandListGetDeviceHandle(ze_command_list_handle_t,
                                                                 ze_device_handle_t*);
ZE_APIEXPORT ze_result_t ZE_APICALL zeCommandListGetContextHandle(ze_command_list_handle_t,
                                                                  ze_context_handle_t*);
ZE_APIEXPORT ze_result_t ZE_APICALL zeCommandListImmediateAppendCommandListsExp(
    ze_command_list_handle_t, uint32_t, ze_command_list_handle_t*, ze_event_handle_t, uint32_t,
    ze_event_handle_t*);
ZE_APIEXPORT ze_result_t ZE_APICALL zeMemPutIpcHandle(ze_context_handle_t, ze_ipc_mem_handle_t);
}

namespace xesim::driver {

constexpr uint32_t kStructDeviceIpVersion = 0x1000f;
constexpr uint32_t kStructDeviceMemoryExt = 0x1000e;
constexpr uint32_t kStructKernelMaxGroupSize = 0x10013;
constexpr uint32_t kStructDeviceProperties12 = 0x20006;  // timerResolution in cycles per second
constexpr uint32_t kStructCounterBasedEventPool = 0x20014;
constexpr uint32_t kQueueFlagInOrder = 1u << 1, kListFlagInOrder = 1u << 3;

// What every extensible structure begins with.
struct Extension {
  uint32_t stype;
  void* next;
};
struct IpVersionExtension : Extension {
  uint32_t ip_version;
};
struct EuCountExtension : Extension {
  uint32_t eu_count;
};
struct MaxGroupSizeExtension : Extension {
  uint32_t max_group_size;
};
struct DeviceMemoryExtension : Extension {
  uint32_t type;  // 0: HBM ... 8: GDDR6
  uint64_t physical_bytes;
  uint32_t read_bandwidth, write_bandwidth;
  uint32_t bandwidth_unit;
};

// Calls `visit` for each structure chained behind `next`.
template <class Visit>
void for_each_extension(const void* next, Visit visit) {
  for (auto* e = static_cast<Extension*>(const_cast<void*>(next)); e != nullptr;
       e = static_cast<Extension*>(e->next)) {
    visit(*e);
  }
}

}  // namespace xesim::driver
