// The one place through which messages reach memory: bounds, races, counts, definedness.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "machine/thread.hpp"
#include "messages/lines.hpp"
#include "messages/races.hpp"

namespace xesim {

enum class Space : uint8_t { kGlobal, kSlm, kScratch, kPayload };  // kPayload: the indirect data
enum class Traffic : uint8_t { kGather, kBlock, kBlock2d, kAtomic };

// Lives as long as one message.
class MemoryAccess {
 public:
  MemoryAccess(Thread& thread, Space space, uint64_t base, Traffic traffic);
  ~MemoryAccess();  // adds the counts
  MemoryAccess(const MemoryAccess&) = delete;
  MemoryAccess& operator=(const MemoryAccess&) = delete;

  // Where the simulator finds [address, address + bytes); all checks of the access are done. For a
  // write, `value` is what will be written there, if it lies in one piece.
  uint8_t* reach(uint64_t address, uint32_t bytes, Access access, const uint8_t* value = nullptr) {
    if (access != Access::kWrite) read_ += bytes;
    if (access != Access::kRead) written_ += bytes;
    if (space_ != Space::kGlobal) return reach_local(address + base_, bytes, access, value);
    address += base_;
    Worker& worker = *thread_.worker;
    Allocation* a = worker.last_found;
    if (a == nullptr || bytes > a->bytes || address - a->address > a->bytes - bytes) {
      a = find(address, bytes, access);
    }
    const uint64_t offset = address - a->address;
    if (access != Access::kWrite) mark_lines(*a, offset, bytes, false);
    if (access != Access::kRead) mark_lines(*a, offset, bytes, true);
    if (check_global_races_ && a->kind != MemoryKind::kInternal) {
      races_.access(*a, offset, bytes, access);
    }
    return a->data + offset;
  }

  int lane = -1;  // whose access comes next, for the texts of faults

  // SLM and scratch carry definedness with the data; elsewhere memory counts as defined.
  bool carries_defined() const { return local_ != nullptr && thread_.track; }
  // `memory` is a result of reach().
  void carry_to_registers(const uint8_t* memory, uint32_t bytes, uint32_t grf_byte);
  void carry_from_registers(uint8_t* memory, uint32_t bytes, uint32_t grf_byte);
  bool defined(const uint8_t* memory, uint32_t bytes) const;
  void define(uint8_t* memory, uint32_t bytes);

  // Whole blocks, with definedness. What goes to global memory must be defined.
  void load(uint64_t address, uint32_t bytes, uint32_t grf_byte);
  void store(uint64_t address, uint32_t bytes, uint32_t grf_byte);

 private:
  std::string by_lane() const { return lane < 0 ? "" : " by lane " + std::to_string(lane); }
  Allocation* find(uint64_t address, uint64_t bytes, Access access);
  uint8_t* reach_local(uint64_t address, uint32_t bytes, Access access, const uint8_t* value);

  Thread& thread_;
  const Space space_;
  const Traffic traffic_;
  const bool check_global_races_;
  const uint64_t base_;
  LocalMemory* local_ = nullptr;
  uint64_t read_ = 0, written_ = 0;
  GlobalRaces races_;
  std::optional<SlmRaces> slm_races_;
};

}  // namespace xesim
