// A send as its parts: what the descriptors say, where the payloads lie. Decoded in send.cpp,
// executed by the file of its kind.
#pragma once

#include <algorithm>
#include <cstdint>

#include "machine/thread.hpp"

namespace xesim {

// Opcodes of the load/store cache messages, also used for the older messages that do the same.
enum class LscOp : uint8_t {
  kLoad,
  kLoadStrided,
  kLoadQuad,
  kLoadBlock2d,
  kStore,
  kStoreStrided,
  kStoreQuad,
  kStoreBlock2d,
  kInc,
  kDec,
  kAtomicLoad,
  kAtomicStore,
  kAdd,
  kSub,
  kSmin,
  kSmax,
  kUmin,
  kUmax,
  kCas,
  kFadd,
  kFsub,
  kFmin,
  kFmax,
  kFcas,
  kAnd,
  kOr,
  kXor,
  kFence = 0x1f
};

struct Message {
  Thread& thread;
  const Inst& inst;
  uint32_t desc = 0, exdesc = 0;
  uint32_t lanes = 0;  // that execute; bit i = lane i
  LscOp op = LscOp::kLoad;

  Space space = Space::kGlobal;
  uint64_t base = 0;   // added to every address
  int32_t offset = 0;  // the immediate offset in bytes; 2D blocks use offset_x, offset_y (elements)
  int32_t offset_x = 0, offset_y = 0;

  int address_bytes = 8;    // of one lane's address
  int memory_bytes = 4;     // of one element in memory
  int register_bytes = 4;   // of one element in registers
  int register_shift = 0;   // byte of a register element where the memory element lies
  int vector = 1;           // elements per lane
  uint32_t components = 0;  // quad messages: mask of x y z w; 0 for others
  bool transposed = false, vnni = false;

  // Register bytes of the operands.
  bool has_dst = false;
  uint32_t dst = 0, addresses = 0, data = 0;

  const Isa& isa() const { return *thread.launch->isa; }
  // Registers between the components of a vector: every component starts in a register of its own,
  // with room for as many lanes as a register has dwords: a compare-and-swap of 8 qwords takes 4
  // registers of data on pvc and bmg.
  uint32_t component_stride() const {
    const auto grf = static_cast<uint32_t>(isa().grf_bytes);
    const int lanes = std::max<int>(inst.exec_size, isa().grf_bytes / 4);
    const auto bytes = static_cast<uint32_t>(lanes * register_bytes);
    return (bytes + grf - 1) / grf * grf;
  }
  uint32_t all_lanes() const { return xesim::all_lanes(inst.exec_size); }
  // The address of a lane before `base`.
  uint64_t address_of(int lane) const;
  // What a load or store does; a load to nowhere is a prefetch.
  Access access(bool store) const {
    if (store) return Access::kWrite;
    return has_dst ? Access::kRead : Access::kPrefetch;
  }
  // Faults if there is no src0, or if the address registers of executing lanes are undefined; a
  // prefetch may ask for any address.
  void require_addresses(bool defined = true) const;
  // Faults if there is no src1, or if it runs past the register file.
  void require_data(uint64_t bytes) const;
};

// Faults naming the descriptor: for everything that these files do not know.
[[noreturn]] void unknown_message(const Message& message, const char* what);
// Faults when an operand runs past the register file.
void require_registers(uint32_t byte, uint64_t count);

// lsc.cpp
void run_lanes(const Message& message);       // load, store, quad: an address per lane
void run_transposed(const Message& message);  // one address, consecutive elements
// atomics.cpp
void run_atomic(const Message& message);
// block2d.cpp
void run_block2d(const Message& message);
// legacy.cpp
void run_data_cache0(Message& message);
void run_data_cache1(Message& message);
// gateway.cpp
void run_gateway(Message& message);

// The base of a surface by its handle or binding table index.
uint64_t surface_base(const Launch& launch, uint64_t key, const char* kind);

}  // namespace xesim
