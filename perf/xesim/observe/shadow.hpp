// Words beside the allocations that a launch touches, in proportion to their size: zeros, mapped at
// the first need, sparse. They end with the launch.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "machine/memory.hpp"

namespace xesim {

class Shadow {
 public:
  // One word stands for so many bytes.
  Shadow(uint64_t bytes_of_word, size_t workers)
      : bytes_of_word_(bytes_of_word), recent_(workers) {}
  ~Shadow();
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;

  // The words of an allocation, the same ones for every worker.
  uint64_t* of(const Allocation& allocation, size_t worker) {
    Mapped& recent = recent_[worker].of[allocation.id % kRecent];
    if (recent.id != allocation.id) recent = map(allocation);
    return recent.words.data();
  }

  template <class F>
  void for_each(F&& visit) const {
    for (const Mapped& mapped : all_) visit(std::span<const uint64_t>(mapped.words));
  }

 private:
  static constexpr size_t kRecent = 8;
  struct Mapped {
    uint64_t id = 0;  // of the allocation; 0 is none's
    std::span<uint64_t> words;
  };
  struct alignas(64) Recent {  // what one worker has seen
    std::array<Mapped, kRecent> of;
  };

  Mapped map(const Allocation& allocation);

  const uint64_t bytes_of_word_;
  std::vector<Recent> recent_;
  std::mutex mutex_;
  std::vector<Mapped> all_;
};

}  // namespace xesim
