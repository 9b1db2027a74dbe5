#include "observe/lines.hpp"

#include <bit>

#include "machine/thread.hpp"
#include "observe/record.hpp"

namespace xesim {
namespace {

// The bit is tested first: a locked operation on every access would cost more than the access.
void mark(Shadow& shadow, const MessageEvent& event, size_t worker) {
  const Allocation* allocation = nullptr;
  uint64_t* lines = nullptr;
  for (const Piece& piece : event.pieces) {
    if (piece.allocation != allocation) {
      allocation = piece.allocation;
      lines = shadow.of(*allocation, worker);
    }
    const uint64_t offset = piece.address - allocation->address;
    for (uint64_t line = offset / 64; line <= (offset + piece.bytes - 1) / 64; ++line) {
      const uint64_t bit = uint64_t{1} << (line % 64);
      uint64_t* word = lines + line / 64;
      if ((__atomic_load_n(word, __ATOMIC_RELAXED) & bit) == 0) {
        __atomic_fetch_or(word, bit, __ATOMIC_RELAXED);
      }
    }
  }
}

uint64_t count(const Shadow& shadow) {
  uint64_t lines = 0;
  shadow.for_each([&](std::span<const uint64_t> words) {
    for (const uint64_t word : words) lines += static_cast<uint64_t>(std::popcount(word));
  });
  return lines;
}

}  // namespace

void Lines::on_message(const Thread& thread, const MessageEvent& event) {
  if (event.space != Space::kGlobal || event.access == Access::kPrefetch) return;
  const size_t worker = thread.worker->index;
  if (event.access != Access::kWrite) mark(read_, event, worker);
  if (event.access != Access::kRead) mark(written_, event, worker);
}

void Lines::report(LaunchRecord& record) {
  record.lines_read = count(read_);
  record.lines_written = count(written_);
}

}  // namespace xesim
