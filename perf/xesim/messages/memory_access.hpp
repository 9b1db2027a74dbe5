// The one place through which messages reach memory: bounds, definedness, the launch's observers.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "messages/message.hpp"

namespace xesim {

// Lives as long as one message: it reaches for all pieces, and tells the observers of them before
// memory changes, or after it was read, so that whoever sees a value sees what came before it.
class MemoryAccess {
 public:
  MemoryAccess(const Message& message, Traffic traffic, Access access);
  MemoryAccess(const MemoryAccess&) = delete;
  MemoryAccess& operator=(const MemoryAccess&) = delete;

  // Adds [address, address + bytes) and returns where the simulator finds it, which stays so until
  // the message ends. For a write, `value` is what will be written there, if it lies in one piece.
  uint8_t* reach(uint64_t address, uint32_t bytes, const uint8_t* value = nullptr) {
    if (space_ != Space::kGlobal) return reach_local(address + base_, bytes, value);
    address += base_;
    const Allocation* a = thread_.worker->last_found;
    if (a == nullptr || bytes > a->bytes || address - a->address > a->bytes - bytes) {
      a = find(address, bytes);
    }
    return add({address, a->data + (address - a->address), a, bytes, true});
  }
  // Adds what a prefetch asks for: any address will do.
  void prefetch(uint64_t address, uint32_t bytes) {
    add({address + base_, nullptr, nullptr, bytes, true});
  }
  void tell() const {
    thread_.launch->observers.on_message(
        thread_, {space_, traffic_, access_, returns_, narrow_surface, {pieces_, count_}});
  }
  const Piece* pieces() const { return pieces_; }

  int lane = -1;  // whose access comes next, for the texts of faults
  bool narrow_surface = false;

  // SLM and scratch carry definedness with the data; elsewhere memory counts as defined.
  bool carries_defined() const { return local_ != nullptr && thread_.track; }
  // `memory` is in a piece.
  void carry_to_registers(const uint8_t* memory, uint32_t bytes, uint32_t grf_byte);
  void carry_from_registers(uint8_t* memory, uint32_t bytes, uint32_t grf_byte);
  bool defined(const uint8_t* memory, uint32_t bytes) const;
  void define(uint8_t* memory, uint32_t bytes);

  // A whole piece, with definedness.
  void load(const Piece& piece, uint32_t grf_byte);
  void store(const Piece& piece, uint32_t grf_byte);
  // A message of one piece, all of it.
  void run_block(uint64_t address, uint32_t bytes);

 private:
  static constexpr size_t kMostPieces = 256;  // rows that a 2D block can name

  uint8_t* add(const Piece& piece) {
    pieces_[count_++] = piece;
    return piece.memory;
  }
  std::string by_lane() const { return lane < 0 ? "" : " by lane " + std::to_string(lane); }
  Allocation* find(uint64_t address, uint64_t bytes);
  uint8_t* reach_local(uint64_t address, uint32_t bytes, const uint8_t* value);

  const Message& message_;
  Thread& thread_;
  const Space space_;
  const Traffic traffic_;
  const Access access_;
  const bool returns_;
  const uint64_t base_;
  LocalMemory* local_ = nullptr;
  size_t count_ = 0;
  Piece pieces_[kMostPieces];
};

}  // namespace xesim
