// Shadows of the allocations that a launch touches: which 64-byte lines were read and written, and
// the race detector's words. They are mapped at the first need and live until the next reset.
#pragma once

#include <cstdint>
#include <utility>

#include "machine/memory.hpp"

namespace xesim {

// Drops all shadows. The launch code calls it before the first thread runs, when no other launch
// runs.
void reset_line_counts();

// Distinct 64-byte lines read and written since the reset.
std::pair<uint64_t, uint64_t> count_lines();

// The race detector keeps one word for so many bytes.
constexpr uint64_t kGranule = 4;

// Maps a shadow that is not there yet; several host threads may ask at once and get the same one.
uint64_t* map_lines(Allocation& allocation, bool written);
uint64_t* map_last_access(Allocation& allocation);

// Notes that [offset, offset + bytes) was touched. The bit is tested first: a locked operation on
// every access would cost more than the access.
inline void mark_lines(Allocation& allocation, uint64_t offset, uint64_t bytes, bool written) {
  uint64_t* lines = __atomic_load_n(written ? &allocation.lines_written : &allocation.lines_read,
                                    __ATOMIC_ACQUIRE);
  if (lines == nullptr) lines = map_lines(allocation, written);
  for (uint64_t line = offset / 64; line <= (offset + bytes - 1) / 64; ++line) {
    const uint64_t bit = uint64_t{1} << (line % 64);
    uint64_t* word = lines + line / 64;
    if ((__atomic_load_n(word, __ATOMIC_RELAXED) & bit) == 0) {
      __atomic_fetch_or(word, bit, __ATOMIC_RELAXED);
    }
  }
}

inline uint64_t* last_access(Allocation& allocation) {
  uint64_t* words = __atomic_load_n(&allocation.last_access, __ATOMIC_ACQUIRE);
  return words != nullptr ? words : map_last_access(allocation);
}

}  // namespace xesim
