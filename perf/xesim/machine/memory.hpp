// Device memory: one address space for all simulated devices of the process. An allocation has an
// address that the program sees and a mapping through which the simulator reads and writes it; for
// device memory under the "host" check the former is inaccessible to the host. Addresses are not
// reused soon, and pages around every allocation stay unmapped, so stray and late accesses are
// found.
#pragma once

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

namespace xesim {

enum class MemoryKind : uint8_t {
  kDevice,
  kHost,
  kShared,
  kInternal
};  // kInternal: constants, private memory, ...

struct Allocation {
  uint64_t address = 0;  // as the program sees it
  uint64_t bytes = 0;
  uint8_t* data = nullptr;  // through which the simulator accesses it; data[0] is `address`
  MemoryKind kind = MemoryKind::kDevice;
  uint64_t id = 0;        // unique, never reused
  void* owner = nullptr;  // the driver's device handle, opaque here
  bool live = true;
};

class Memory {
 public:
  static Memory& instance();

  // Zero bytes are allocated as one. Alignment is a power of two, at least 64. Large allocations
  // are sparse.
  Allocation* allocate(uint64_t bytes, uint64_t alignment, MemoryKind kind, void* owner,
                       bool hide_from_host);
  // Throws Fault on an address that is not the start of a live allocation (double free, foreign
  // pointer).
  void release(uint64_t address);

  // The live allocation that holds all of [address, address + bytes), or null.
  Allocation* find(uint64_t address, uint64_t bytes);
  // What is wrong with an access that find() refused: "is 4 bytes past the end of the 4096-byte
  // device allocation at 0x...", "in an allocation that was freed", "in no allocation (nearest
  // ...)".
  std::string explain(uint64_t address, uint64_t bytes);
  // Whether the address lies in the range from which allocations are taken, live or not.
  bool owns(uint64_t address) const;
  // Where that range begins: other programs' address spaces move it from run to run.
  uint64_t base() const;

  // Bumped by every allocate and release: cached finds are valid while it stays.
  uint64_t version() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  Memory();
};

}  // namespace xesim
