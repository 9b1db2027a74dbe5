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
#include "machine/memory.hpp"
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
};

// What a launch did; last_launches() keeps them for the process, oldest first.
struct LaunchRecord {
  std::string kernel, device;
  std::array<uint32_t, 3> groups{}, local{};
  int simd = 1, grf = 128;
  uint64_t threads = 0;
  uint64_t instructions = 0;
  // Instructions by class.
  uint64_t dpas = 0, math = 0, moves = 0, float_alu = 0, integer_alu = 0, control = 0, sync = 0,
           sends = 0;
  uint64_t dpas_macs = 0;    // multiply-adds done
  double dpas_useful = 1.0;  // share of the dpas rows (repeat counts) out of the full 8
  uint64_t barriers = 0;
  // Bytes by kind of message, active lanes only.
  uint64_t block2d_read = 0, block2d_written = 0, block_read = 0,
           block_written = 0;  // block: transposed
  uint64_t gather_read = 0, scatter_written = 0, atomic_bytes = 0, prefetch_bytes = 0;
  uint64_t global_read = 0, global_written = 0;  // sums of the above that went to global memory
  uint64_t lines_read = 0, lines_written = 0;    // distinct 64-byte lines
  uint64_t slm_read = 0, slm_written = 0, scratch_read = 0, scratch_written = 0;
  uint64_t block2d_small_surfaces =
      0;  // 2D block messages on surfaces narrower than the documented 64 bytes
  uint32_t slm_size = 0, spill_bytes = 0, scratch_size = 0;
  // Of the simulator, not of a device: how long the launch took to simulate, on how many host
  // threads; with XEFLASH_SIM_PROFILE=1 the share of each class of instructions.
  double simulation_seconds = 0;
  int simulation_threads = 1;
  std::array<double, 8> simulation_class_share{};
};

// Runs to the end, on several host threads. Throws Fault with the kernel, group, thread,
// instruction address, bits, disassembly and cause; memory then holds what had been written until
// then.
LaunchRecord launch(const LaunchDesc& desc);

// The records of this process since the last clear; at most the newest 4096 are kept.
std::vector<LaunchRecord> last_launches();
void clear_launches();
std::string to_json(const LaunchRecord& record);

}  // namespace xesim
