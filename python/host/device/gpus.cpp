#include "host/device/gpus.hpp"

#include "host/device/native.hpp"

namespace xeflash {
namespace {

namespace syclexp = sycl::ext::oneapi::experimental;

constexpr const char* kNoMatrixUnit = "it has no matrix unit";

// The families by major and minor number; a revision is a stepping of the chip. Compilers make the
// same code for all GPUs of a family: Xe2 and Xe3 encode everything that kernels use in the same
// way.
constexpr struct {
  uint32_t major, minor;
  GpuKernels kernels;
} kGpus[] = {
    {12, 55, {"dg2", ""}},          // Alchemist G10: Arc A770, A750, A580; Flex 170
    {12, 56, {"dg2", ""}},          // Alchemist G11: Arc A380, A310; Flex 140
    {12, 57, {"dg2", ""}},          // Alchemist G12: Arc Pro A60
    {12, 60, {"pvc", ""}},          // Ponte Vecchio: Data Center GPU Max
    {12, 61, {"", kNoMatrixUnit}},  // Ponte Vecchio VG
    {12, 70, {"", kNoMatrixUnit}},  // Meteor Lake U and S, Arrow Lake U and S
    {12, 71, {"", kNoMatrixUnit}},  // Meteor Lake H
    {12, 74, {"dg2", ""}},          // Arrow Lake H
    {20, 1, {"bmg", ""}},           // Battlemage G21: Arc B580, B570; Arc Pro B60, B50
    {20, 2, {"bmg", ""}},           // Battlemage G31: Arc Pro B70, B65
    {20, 4, {"bmg", ""}},           // Lunar Lake
    {30, 0, {"bmg", ""}},           // Panther Lake H
    {30, 1, {"bmg", ""}},           // Panther Lake U
    {30, 3, {"bmg", ""}},           // Wildcat Lake
    {30, 4, {"bmg", ""}},           // Nova Lake S
    {30, 5, {"bmg", ""}},           // Nova Lake U
};
constexpr uint32_t kFirstMajor = 12, kFirstMinor = 55;  // older GPUs have no matrix unit

}  // namespace

std::string to_string(IpVersion v) {
  if (v.value == 0) return "";
  return std::to_string(v.major()) + "." + std::to_string(v.minor()) + "." +
         std::to_string(v.revision());
}

IpVersion ip_version_of(const sycl::device& gpu) {
  if (gpu.get_backend() == sycl::backend::ext_oneapi_level_zero) {
    return {level_zero::ip_version(gpu)};
  }
  // SYCL's numbers of Intel's GPUs are their versions, but it knows only those of its own time.
  try {
    const auto number = static_cast<uint64_t>(gpu.get_info<syclexp::info::device::architecture>());
    if (number >> 40 == 0) return {static_cast<uint32_t>(number >> 8)};
  } catch (const sycl::exception&) {
  }
  return {};
}

GpuKernels kernels_for(IpVersion version) {
  for (const auto& gpu : kGpus) {
    if (gpu.major == version.major() && gpu.minor == version.minor()) return gpu.kernels;
  }
  if (version.value == 0) return {"", "its driver does not say which GPU it is"};
  const bool old = version.major() < kFirstMajor ||
                   (version.major() == kFirstMajor && version.minor() < kFirstMinor);
  return {"", old ? kNoMatrixUnit : "this version of xeflash does not know it"};
}

}  // namespace xeflash
