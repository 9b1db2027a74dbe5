// The entry points by which this library passes for the Level Zero loader. The loader's static half
// inside the SYCL runtime asks for all of them, and then finds the API's functions by their names;
// the tables stay empty.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "driver/level_zero.hpp"

namespace {

// Layout of the loader's zel_component_version_t.
struct LoaderVersion {
  char name[64];
  ze_api_version_t spec_version;
  int major, minor, patch;
};

}  // namespace

#pragma GCC visibility push(default)
#define XESIM_TABLE(name) \
  extern "C" ze_result_t name(ze_api_version_t, void*) { return ZE_RESULT_SUCCESS; }
XESIM_TABLE(zeGetCommandListExpProcAddrTable)
XESIM_TABLE(zeGetCommandListProcAddrTable)
XESIM_TABLE(zeGetCommandQueueProcAddrTable)
XESIM_TABLE(zeGetContextProcAddrTable)
XESIM_TABLE(zeGetDeviceExpProcAddrTable)
XESIM_TABLE(zeGetDeviceProcAddrTable)
XESIM_TABLE(zeGetDriverExpProcAddrTable)
XESIM_TABLE(zeGetDriverProcAddrTable)
XESIM_TABLE(zeGetEventExpProcAddrTable)
XESIM_TABLE(zeGetEventPoolProcAddrTable)
XESIM_TABLE(zeGetEventProcAddrTable)
XESIM_TABLE(zeGetFabricEdgeExpProcAddrTable)
XESIM_TABLE(zeGetFabricVertexExpProcAddrTable)
XESIM_TABLE(zeGetFenceProcAddrTable)
XESIM_TABLE(zeGetGlobalProcAddrTable)
XESIM_TABLE(zeGetImageExpProcAddrTable)
XESIM_TABLE(zeGetImageProcAddrTable)
XESIM_TABLE(zeGetKernelExpProcAddrTable)
XESIM_TABLE(zeGetKernelProcAddrTable)
XESIM_TABLE(zeGetMemExpProcAddrTable)
XESIM_TABLE(zeGetMemProcAddrTable)
XESIM_TABLE(zeGetModuleBuildLogProcAddrTable)
XESIM_TABLE(zeGetModuleProcAddrTable)
XESIM_TABLE(zeGetPhysicalMemProcAddrTable)
XESIM_TABLE(zeGetSamplerProcAddrTable)
XESIM_TABLE(zeGetVirtualMemProcAddrTable)
XESIM_TABLE(zetGetCommandListProcAddrTable)
XESIM_TABLE(zetGetContextProcAddrTable)
XESIM_TABLE(zetGetDebugProcAddrTable)
XESIM_TABLE(zetGetDeviceProcAddrTable)
XESIM_TABLE(zetGetKernelProcAddrTable)
XESIM_TABLE(zetGetMetricGroupExpProcAddrTable)
XESIM_TABLE(zetGetMetricGroupProcAddrTable)
XESIM_TABLE(zetGetMetricProcAddrTable)
XESIM_TABLE(zetGetMetricQueryPoolProcAddrTable)
XESIM_TABLE(zetGetMetricQueryProcAddrTable)
XESIM_TABLE(zetGetMetricStreamerProcAddrTable)
XESIM_TABLE(zetGetModuleProcAddrTable)
XESIM_TABLE(zetGetTracerExpProcAddrTable)
XESIM_TABLE(zesGetDeviceProcAddrTable)
XESIM_TABLE(zesGetDiagnosticsProcAddrTable)
XESIM_TABLE(zesGetDriverProcAddrTable)
XESIM_TABLE(zesGetEngineProcAddrTable)
XESIM_TABLE(zesGetFabricPortProcAddrTable)
XESIM_TABLE(zesGetFanProcAddrTable)
XESIM_TABLE(zesGetFirmwareProcAddrTable)
XESIM_TABLE(zesGetFrequencyProcAddrTable)
XESIM_TABLE(zesGetGlobalProcAddrTable)
XESIM_TABLE(zesGetLedProcAddrTable)
XESIM_TABLE(zesGetMemoryProcAddrTable)
XESIM_TABLE(zesGetOverclockProcAddrTable)
XESIM_TABLE(zesGetPerformanceFactorProcAddrTable)
XESIM_TABLE(zesGetPowerProcAddrTable)
XESIM_TABLE(zesGetPsuProcAddrTable)
XESIM_TABLE(zesGetRasProcAddrTable)
XESIM_TABLE(zesGetSchedulerProcAddrTable)
XESIM_TABLE(zesGetStandbyProcAddrTable)
XESIM_TABLE(zesGetTemperatureProcAddrTable)
XESIM_TABLE(zelGetTracerApiProcAddrTable)
#undef XESIM_TABLE

extern "C" {

ze_result_t zeLoaderInit() { return ZE_RESULT_SUCCESS; }
void* zeLoaderGetTracingHandle() { return nullptr; }

// 1.19.2 or newer makes the runtime use zeInitDrivers.
ze_result_t zelLoaderGetVersionsInternal(size_t* count, LoaderVersion* versions) {
  if (count == nullptr) return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
  if (*count != 0 && versions != nullptr) {
    std::memset(versions, 0, sizeof *versions);
    std::strcpy(versions->name, "loader");
    versions->spec_version = ze_version(1, 9);
    versions->major = 1;
    versions->minor = 20;
  }
  *count = 1;
  return ZE_RESULT_SUCCESS;
}

ze_result_t zelLoaderTranslateHandleInternal(int, void* from, void** to) {
  if (to == nullptr) return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
  *to = from;
  return ZE_RESULT_SUCCESS;
}

}  // extern "C"
#pragma GCC visibility pop
