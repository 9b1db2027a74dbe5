// What a simulated device says about itself.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "isa/inst.hpp"
#include "machine/chip.hpp"

namespace xesim::driver {

struct DeviceModel {
  Family family;
  const char* id;  // as XEFLASH_SIM calls it
  const char* name;
  const char* ocloc_device;
  uint32_t pci_device;  // PCI id
  uint32_t ip_version;  // major << 22 | minor << 14 | revision
  uint32_t slices, cores_per_slice, xve_per_core, threads_per_xve, simd_width;
  uint32_t clock_mhz;
  uint64_t memory_bytes, max_alloc_bytes;
  const char* memory_name;
  uint32_t memory_type;  // Level Zero's number
  uint32_t memory_mhz, memory_bus_bits, bandwidth_gb_s;
  uint64_t cache_bytes;               // last level
  uint64_t l1_bytes, core_slm_bytes;  // of an Xe-core
  bool slm_is_in_l1 = true;
  uint32_t slm_bytes;       // of a work-group
  uint32_t max_group_size;  // work-items
  std::vector<uint32_t> sub_group_sizes;
  bool fp64;
  bool dpas = true;
  bool integrated = false;

  uint32_t cores() const { return slices * cores_per_slice; }
  // Of the device whose L2 `device` stands for.
  Chip chip(const void* device) const {
    return {device, cores(), cache_bytes, l1_bytes, core_slm_bytes, slm_is_in_l1};
  }
  // Hardware threads that share an Xe core, and with it SLM and barriers: the most that one group
  // can have.
  uint32_t group_threads(int grf_count) const {
    return xve_per_core * threads_per_xve / (grf_count > 128 ? 2 : 1);
  }
};

// "bmg"; "bmg@20.1.9" is one that says that it has this IP version. Throws Fault if there is none
// of that name. Models live as long as the process.
const DeviceModel& model_named(std::string_view name);
// "pvc,bmg" -> models, in that order. Throws Fault naming the word that is not understood.
std::vector<const DeviceModel*> parse_devices(std::string_view text);

}  // namespace xesim::driver
