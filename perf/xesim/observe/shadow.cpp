#include "observe/shadow.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "base/fault.hpp"

namespace xesim {

Shadow::~Shadow() {
  for (const Mapped& mapped : all_) munmap(mapped.words.data(), mapped.words.size_bytes());
}

Shadow::Mapped Shadow::map(const Allocation& allocation) {
  const std::lock_guard lock(mutex_);
  const auto known = std::find_if(all_.begin(), all_.end(),
                                  [&](const Mapped& m) { return m.id == allocation.id; });
  if (known != all_.end()) return *known;
  const uint64_t count = (allocation.bytes + bytes_of_word_ - 1) / bytes_of_word_;
  void* words = mmap(nullptr, count * sizeof(uint64_t), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (words == MAP_FAILED) {
    fail("the host has no address space for the checkers' shadow of a %llu-byte allocation",
         static_cast<unsigned long long>(allocation.bytes));
  }
  all_.push_back({allocation.id, {static_cast<uint64_t*>(words), count}});
  return all_.back();
}

}  // namespace xesim
