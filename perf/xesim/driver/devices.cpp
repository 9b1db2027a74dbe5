#include "driver/devices.hpp"

#include <charconv>

#include "base/fault.hpp"

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
const DeviceModel kMax1550{
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
    .memory_name = "HBM",
    .memory_type = 0,
    .memory_mhz = 3200,
    .memory_bus_bits = 4096,
    .bandwidth_gb_s = 1638,       // ark, halved
    .cache_bytes = 204 * kMiB,    // ark: 408 MB for two stacks
    .l1_bytes = 512 << 10,        // guide
    .core_slm_bytes = 128 << 10,  // guide
    .slm_bytes = 128 << 10,       // guide
    .max_group_size = 1024,       // neo
    .sub_group_sizes = {16, 32},  // guide
    .fp64 = true,
};

const DeviceModel kB580{
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
    .memory_name = "GDDR6",
    .memory_type = 19,
    .memory_mhz = 19000,
    .memory_bus_bits = 192,
    .bandwidth_gb_s = 456,        // ark
    .cache_bytes = 18 * kMiB,     // measured by others on a card
    .l1_bytes = 256 << 10,        // Intel's Xe2 presentation
    .core_slm_bytes = 160 << 10,  // neo
    .slm_bytes = 128 << 10,       // neo
    .max_group_size = 1024,       // neo
    .sub_group_sizes = {16, 32},  // guide
    .fp64 = true,                 // neo: at a reduced rate
};

const DeviceModel kA770{
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
    .memory_name = "GDDR6",
    .memory_type = 19,
    .memory_mhz = 17500,
    .memory_bus_bits = 256,
    .bandwidth_gb_s = 560,           // ark
    .cache_bytes = 16 * kMiB,        // guide
    .l1_bytes = 192 << 10,           // guide
    .core_slm_bytes = 128 << 10,     // guide
    .slm_is_in_l1 = false,           // guide
    .slm_bytes = 64 << 10,           // neo: of the 128 KiB of an Xe core
    .max_group_size = 1024,          // neo
    .sub_group_sizes = {8, 16, 32},  // guide
    .fp64 = false,                   // guide: emulated in software on request only
};

// A device of the same family: what differs.
DeviceModel like(DeviceModel model, void (*differ)(DeviceModel&)) {
  differ(model);
  return model;
}
void share_memory(DeviceModel& m, uint64_t bytes, uint32_t mhz, uint32_t gb_s) {
  m.integrated = true;
  m.memory_bytes = m.max_alloc_bytes = bytes;  // own choice: it is the machine's
  m.memory_name = "LPDDR5";
  m.memory_type = 10;
  m.memory_mhz = mhz;
  m.memory_bus_bits = 128;
  m.bandwidth_gb_s = gb_s;
}

// Numbers of these as their makers and users quote them; caches that nobody quotes are as large as
// the relative's.
const DeviceModel kModels[] = {
    kMax1550,
    kB580,
    kA770,
    like(kB580,
         [](DeviceModel& m) {
           m.id = "bmg-g31";
           m.name = "Intel(R) Arc(TM) Pro B70 Graphics (simulated)";
           m.ocloc_device = "bmg-g31";
           m.pci_device = 0xe223;
           m.ip_version = ip(20, 2, 0);
           m.slices = 8;
           m.clock_mhz = 2800;
           m.memory_bytes = m.max_alloc_bytes = 32 * kGiB;
           m.memory_bus_bits = 256;
           m.bandwidth_gb_s = 608;
         }),
    like(kB580,
         [](DeviceModel& m) {
           m.id = "lnl";
           m.name = "Intel(R) Arc(TM) 140V GPU (simulated)";
           m.ocloc_device = "lnl-m";
           m.pci_device = 0x64a0;
           m.ip_version = ip(20, 4, 4);
           m.slices = 2;
           m.clock_mhz = 2050;
           m.cache_bytes = 8 * kMiB;
           m.l1_bytes = 192 << 10;
           share_memory(m, 16 * kGiB, 8533, 136);
         }),
    like(kB580,
         [](DeviceModel& m) {
           m.family = Family::kPtl;
           m.id = "ptl";
           m.name = "Intel(R) Arc(TM) B390 GPU (simulated)";
           m.ocloc_device = "ptl-h";
           m.pci_device = 0xb080;
           m.ip_version = ip(30, 0, 4);
           m.slices = 2;
           m.cores_per_slice = 6;
           m.clock_mhz = 2400;
           m.cache_bytes = 16 * kMiB;
           share_memory(m, 32 * kGiB, 9600, 153);
         }),
    like(kA770,
         [](DeviceModel& m) {
           m.id = "ats-m";
           m.name = "Intel(R) Data Center GPU Flex 170 (simulated)";
           m.ocloc_device = "ats-m150";
           m.pci_device = 0x56c0;
           m.clock_mhz = 2050;
           m.bandwidth_gb_s = 576;
           m.memory_mhz = 18000;
         }),
    like(kA770,
         [](DeviceModel& m) {
           m.id = "arl-h";
           m.name = "Intel(R) Arc(TM) 140T GPU (simulated)";
           m.ocloc_device = "arl-h";
           m.pci_device = 0x7d51;
           m.ip_version = ip(12, 74, 4);
           m.slices = 2;
           m.clock_mhz = 2350;
           m.cache_bytes = 8 * kMiB;
           share_memory(m, 16 * kGiB, 8400, 134);
         }),
    like(kA770,
         [](DeviceModel& m) {
           m.id = "mtl-h";
           m.name = "Intel(R) Arc(TM) Graphics (simulated)";
           m.ocloc_device = "mtl-h";
           m.pci_device = 0x7d55;
           m.ip_version = ip(12, 71, 4);
           m.slices = 2;
           m.clock_mhz = 2350;
           m.cache_bytes = 4 * kMiB;
           m.dpas = false;
           share_memory(m, 16 * kGiB, 7467, 119);
         }),
};

// "20.1.9"; 0 if it is not of that form.
uint32_t parse_ip(std::string_view text) {
  uint32_t parts[3] = {};
  const char *at = text.data(), *end = at + text.size();
  for (uint32_t& part : parts) {
    const auto result = std::from_chars(at, end, part);
    const bool last = &part == &parts[2];
    if (result.ec != std::errc{} ||
        (last ? result.ptr != end : result.ptr == end || *result.ptr != '.'))
      return 0;
    at = result.ptr + 1;
  }
  return parts[0] < 1 << 10 && parts[1] < 1 << 8 && parts[2] < 1 << 14
             ? ip(parts[0], parts[1], parts[2])
             : 0;
}

}  // namespace

const DeviceModel& model_named(std::string_view name) {
  const size_t at = name.find('@');
  for (const DeviceModel& model : kModels) {
    if (name.substr(0, at) != model.id) continue;
    if (at == std::string_view::npos) return model;
    auto* another = new DeviceModel(model);
    another->ip_version = parse_ip(name.substr(at + 1));
    if (another->ip_version == 0) {
      fail("'%s' names no IP version: it is MAJOR.MINOR.REVISION, as in %s@20.1.9",
           std::string(name).c_str(), model.id);
    }
    return *another;
  }
  std::string known;
  for (const DeviceModel& model : kModels) known.append(known.empty() ? "" : ", ").append(model.id);
  fail("there is no simulated device '%s'; known are %s", std::string(name).c_str(), known.c_str());
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
    models.push_back(&model_named(word));
  }
  return models;
}

}  // namespace xesim::driver
