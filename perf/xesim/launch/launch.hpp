// The simulator's front: load a native binary once, launch its kernels. The Level Zero driver and
// the tests of machine code both stand on this.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "machine/checks.hpp"
#include "machine/chip.hpp"
#include "machine/memory.hpp"
#include "observe/record.hpp"
#include "zebin/zebin.hpp"

namespace xesim {

struct Kernel;  // decoded code with its description
struct Module;  // the kernels of one binary, their data sections in device memory

// Throws Fault.
std::shared_ptr<Module> load_module(std::span<const uint8_t> binary, Family family, bool has_dpas);
std::span<const std::shared_ptr<Kernel>> kernels_of(const Module& module);
// Null if there is none of that name.
std::shared_ptr<Kernel> find_kernel(const Module& module, const std::string& name);
const KernelInfo& info_of(const Kernel& kernel);

struct LaunchDesc {
  std::shared_ptr<Kernel> kernel;
  std::array<uint32_t, 3> groups{1, 1, 1};
  std::array<uint32_t, 3> local{1, 1, 1};
  std::array<uint32_t, 3> offset{0, 0, 0};  // global id of the first work-item
  // One per kernel argument: the bytes; a local-memory argument is an empty vector and its size in
  // slm_bytes.
  std::vector<std::vector<uint8_t>> arguments;
  std::vector<uint64_t> slm_bytes;
  std::string device;  // name for the record of the launch
  Chip chip;
};

// Runs to the end, on several host threads. Throws Fault with the kernel, group, thread,
// instruction address, bits, disassembly and cause; memory then holds what had been written until
// then.
LaunchRecord launch(const LaunchDesc& desc);

// Empties the L2 of every device, which keeps its lines from launch to launch.
void clear_caches();

}  // namespace xesim
