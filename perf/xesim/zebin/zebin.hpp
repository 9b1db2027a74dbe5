// Native binaries: ELF sections and the .ze_info description of each kernel.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "isa/inst.hpp"

namespace xesim {

enum class ArgType : uint8_t {
  kPointer,
  kValue,
  kLocalSize,
  kEnqueuedLocalSize,
  kGroupCount,
  kGlobalSize,
  kGlobalOffset,
  kWorkDimensions,
  kBufferOffset,
  kBufferSize,
  kConstBase,
  kGlobalBase,
  kPrivateBase,
  kImplicitArgs,
  kPrintfBuffer,
  kUnusedPointer  // assert_buffer, sync_buffer, rt_global_buffer, ...: 0 is written
};
enum class AddressMode : uint8_t { kStateless, kBindless, kStateful, kSlm };

struct PayloadArg {
  ArgType type;
  AddressMode mode = AddressMode::kStateless;
  int index = -1;       // of the kernel argument
  uint32_t offset = 0;  // in the cross-thread data
  uint32_t size = 0;
  uint32_t source_offset = 0;
  uint32_t slm_alignment = 16;
};

struct KernelInfo {
  std::string name;
  int grf_count = 128;
  int simd_size = 1;  // 1 = ESIMD
  int barrier_count = 0;
  uint32_t slm_size = 0;
  uint32_t inline_data = 0;  // bytes of the cross-thread data that come in r1
  uint32_t skip_per_thread_load = 0;
  std::vector<uint32_t> required_group_size;  // empty or x, y, z
  int required_sub_group_size = 0;
  bool has_dpas = false, require_implicit_args = false;
  std::vector<PayloadArg> payload;
  bool packed_local_ids = false;  // ESIMD: 3 x u16
  uint32_t local_id_bytes = 0;    // SIMT: size of the per-thread block, 0 = none
  uint32_t scratch_bytes = 0;     // per thread; spills, private memory
  uint32_t spill_bytes = 0;
  uint32_t private_bytes = 0;        // stateless private memory of a hardware thread, all its lanes
  std::map<int, int> binding_table;  // binding-table index -> argument index
  int argument_count() const;        // highest argument index + 1
};

struct Relocation {
  uint64_t offset;
  uint32_t type;  // 1 address, 2 low half, 3 high half, ...
  std::string symbol;
  bool is_function;     // the symbol lies in a text section
  std::string section;  // of the symbol, .bss.X counted as .data.X; empty = undefined
  uint64_t value;       // offset in that section (.bss.X: behind .data.X)
};

struct KernelCode {
  KernelInfo info;
  std::vector<uint8_t> text;
  std::vector<Relocation> relocations;
};

// Sections of data that kernels refer to, zero-filled parts appended to their initialised ones.
struct DataSection {
  std::vector<uint8_t> bytes;  // .data.X
  uint64_t zeros = 0;          // .bss.X behind it
};

struct Zebin {
  Family family;
  std::vector<KernelCode> kernels;
  std::map<std::string, DataSection> data;  // "const", "global", "const.string"
  std::vector<uint8_t> functions;           // .text
  std::vector<Relocation> function_relocations;
};

// Reads a native binary: a zebin, or an `ar` archive of zebins of which the one for `family` is
// taken. Throws Fault naming what is wrong, for any input.
Zebin read_zebin(std::span<const uint8_t> file, Family family);
// Whether the bytes are one of the two (and not SPIR-V, say).
bool is_native(std::span<const uint8_t> file);

}  // namespace xesim
