#include "messages/lines.hpp"

#include <sys/mman.h>

#include <bit>
#include <mutex>
#include <vector>

#include "machine/fault.hpp"

namespace xesim {
namespace {

enum class Kind : uint8_t { kRead, kWritten, kLastAccess };

struct Shadow {
  uint64_t address, id;  // of the allocation, which may have been released since
  uint64_t* words;
  uint64_t count;  // words
  Kind kind;
};

std::mutex mutex;
std::vector<Shadow>& shadows() {
  static auto* list = new std::vector<Shadow>;  // never destroyed, as the memory it describes
  return *list;
}

uint64_t*& slot_of(Allocation& allocation, Kind kind) {
  if (kind == Kind::kRead) return allocation.lines_read;
  return kind == Kind::kWritten ? allocation.lines_written : allocation.last_access;
}

uint64_t* map_shadow(Allocation& allocation, Kind kind) {
  std::lock_guard lock(mutex);
  uint64_t*& slot = slot_of(allocation, kind);
  if (slot != nullptr) return slot;  // another host thread was faster
  const uint64_t bytes_of_a_word = kind == Kind::kLastAccess ? kGranule : 64 * 64;
  const uint64_t count = (allocation.bytes + bytes_of_a_word - 1) / bytes_of_a_word;
  void* words = mmap(nullptr, count * sizeof(uint64_t), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (words == MAP_FAILED) {
    fail("the host has no address space for the checkers' shadow of a %llu-byte allocation",
         static_cast<unsigned long long>(allocation.bytes));
  }
  shadows().push_back(
      {allocation.address, allocation.id, static_cast<uint64_t*>(words), count, kind});
  __atomic_store_n(&slot, static_cast<uint64_t*>(words), __ATOMIC_RELEASE);
  return slot;
}

}  // namespace

uint64_t* map_lines(Allocation& allocation, bool written) {
  return map_shadow(allocation, written ? Kind::kWritten : Kind::kRead);
}

uint64_t* map_last_access(Allocation& allocation) {
  return map_shadow(allocation, Kind::kLastAccess);
}

void reset_line_counts() {
  std::lock_guard lock(mutex);
  for (const Shadow& shadow : shadows()) {
    Allocation* allocation = Memory::instance().find(shadow.address, 1);
    if (allocation != nullptr && allocation->id == shadow.id) {
      slot_of(*allocation, shadow.kind) = nullptr;
    }
    munmap(shadow.words, shadow.count * sizeof(uint64_t));
  }
  shadows().clear();
}

std::pair<uint64_t, uint64_t> count_lines() {
  std::lock_guard lock(mutex);
  std::pair<uint64_t, uint64_t> lines{0, 0};
  for (const Shadow& shadow : shadows()) {
    if (shadow.kind == Kind::kLastAccess) continue;
    uint64_t bits = 0;
    for (uint64_t word = 0; word < shadow.count; ++word) {
      bits += static_cast<uint64_t>(std::popcount(shadow.words[word]));
    }
    (shadow.kind == Kind::kRead ? lines.first : lines.second) += bits;
  }
  return lines;
}

}  // namespace xesim
