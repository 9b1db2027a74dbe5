#include "driver/devices.hpp"

#include "machine/fault.hpp"

namespace xesim::driver {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;

constexpr uint32_t ip(uint32_t major, uint32_t minor, uint32_t revision) {
  return major << 22 | minor << 14 | revision;
}

// Where the numbers are published. "guide": Intel oneAPI GPU optimization guide, architecture
// tables. "ark": Intel's product pages. "neo": compute-runtime, hardware information tables.
// "sycl": architecture numbers of the SYCL runtime, read there. The other three were not opened for
// this table: their numbers are as others quote them, and limits of allocations and groups, clocks
// of memory and flags of float atomics are the least certain.
const DeviceModel kModels[] = {
    {
        // One stack of two, as the driver shows it in its default (flat) hierarchy.
        .family = Family::kPvc,
        .id = "pvc",
        .name = "Intel(R) Data Center GPU Max 1550 (simulated)",
        .ocloc_device = "pvc",
        .pci_device = 0x0bd5,         // neo
        .ip_version = ip(12, 60, 7),  // sycl: intel_gpu_pvc
        .slices = 4,
        .cores_per_slice = 16,  // guide: 4 slices a stack, 64 of its Xe cores in use
        .xve_per_core = 8,
        .threads_per_xve = 8,
        .simd_width = 16,              // guide
        .clock_mhz = 1600,             // ark
        .memory_bytes = 64 * kGiB,     // ark: 128 GB for two stacks
        .max_alloc_bytes = 64 * kGiB,  // own choice: the driver's limit is a share of what is free
        .memory_type = 0,
        .memory_mhz = 3200,
        .memory_bus_bits = 4096,
        .bandwidth_gb_s = 1638,       // ark, halved
        .cache_bytes = 204 * kMiB,    // ark: 408 MB for two stacks
        .slm_bytes = 128 << 10,       // guide
        .max_group_size = 1024,       // neo
        .sub_group_sizes = {16, 32},  // guide
        .fp64 = true,
    },
    {
        .family = Family::kBmg,
        .id = "bmg",
        .name = "Intel(R) Arc(TM) B580 Graphics (simulated)",
        .ocloc_device = "bmg-g21",
        .pci_device = 0xe20b,        // neo
        .ip_version = ip(20, 1, 4),  // sycl: intel_gpu_bmg_g21
        .slices = 5,
        .cores_per_slice = 4,  // ark: 20 Xe cores in 5 render slices
        .xve_per_core = 8,
        .threads_per_xve = 8,
        .simd_width = 16,              // Intel's Xe2 presentation
        .clock_mhz = 2850,             // ark: boost; 2670 "game clock"
        .memory_bytes = 12 * kGiB,     // ark
        .max_alloc_bytes = 12 * kGiB,  // own choice, as above
        .memory_type = 8,
        .memory_mhz = 19000,
        .memory_bus_bits = 192,
        .bandwidth_gb_s = 456,        // ark
        .cache_bytes = 18 * kMiB,     // measured by others on a card
        .slm_bytes = 128 << 10,       // neo
        .max_group_size = 1024,       // neo
        .sub_group_sizes = {16, 32},  // guide
        .fp64 = true,                 // neo: at a reduced rate
    },
    {
        .family = Family::kDg2,
        .id = "dg2",
        .name = "Intel(R) Arc(TM) A770 Graphics (simulated)",
        .ocloc_device = "dg2-g10",
        .pci_device = 0x56a0,         // neo
        .ip_version = ip(12, 55, 8),  // sycl: intel_gpu_acm_g10
        .slices = 8,
        .cores_per_slice = 4,  // ark: 32 Xe cores in 8 render slices
        .xve_per_core = 16,
        .threads_per_xve = 8,
        .simd_width = 8,            // guide
        .clock_mhz = 2400,          // neo: highest; 2100 "graphics clock" (ark)
        .memory_bytes = 16 * kGiB,  // ark
        .max_alloc_bytes =
            4 * kGiB - 4096,  // neo: 4 GiB less a page, unless the limit is relaxed on request
        .memory_type = 8,
        .memory_mhz = 17500,
        .memory_bus_bits = 256,
        .bandwidth_gb_s = 560,           // ark
        .cache_bytes = 16 * kMiB,        // guide
        .slm_bytes = 64 << 10,           // neo: of the 128 KiB of an Xe core
        .max_group_size = 1024,          // neo
        .sub_group_sizes = {8, 16, 32},  // guide
        .fp64 = false,                   // guide: emulated in software on request only
    },
};

}  // namespace

const DeviceModel* find_model(std::string_view id) {
  for (const DeviceModel& model : kModels) {
    if (id == model.id) return &model;
  }
  return nullptr;
}

std::vector<const DeviceModel*> parse_devices(std::string_view text) {
  std::vector<const DeviceModel*> models;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string_view word = text.substr(begin, end - begin);
    begin = end + 1;
    while (!word.empty() && word.front() == ' ') word.remove_prefix(1);
    while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
    if (word.empty()) continue;
    const DeviceModel* model = find_model(word);
    if (model == nullptr) {
      fail("XEFLASH_SIM: there is no simulated device '%s'; known are pvc, bmg, dg2",
           std::string(word).c_str());
    }
    models.push_back(model);
  }
  return models;
}

}  // namespace xesim::driver
