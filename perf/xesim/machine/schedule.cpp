#include "machine/schedule.hpp"

#include <numeric>

#include "machine/thread.hpp"

namespace xesim {
namespace {

// Of a turn. A turn that is short beside a loop's body lets threads that do the same be at the same
// place of it, as they are when each waits for its loads.
constexpr uint64_t kShort = 16, kLong = 1 << 16;

uint64_t next_random(uint64_t& state) {  // xorshift64 (Marsaglia, 2003)
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

}  // namespace

// k -> k * step + shift mod groups is a permutation.
GroupOrder::GroupOrder(const Checks& checks, uint64_t groups) : groups_(groups) {
  if (!checks.interleave || groups <= 2) return;
  uint64_t random = checks.seed * 2 + 0x9e3779b97f4a7c15;
  do {
    step_ = next_random(random) % groups;
  } while (std::gcd(step_, groups) != 1);
  shift_ = next_random(random) % groups;
}

uint64_t GroupOrder::operator[](uint64_t k) const {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(k) * step_ + shift_) % groups_);
}

Turns::Turns(const Checks& checks, const Group& group)
    : interleave_(checks.interleave),
      instructions_(checks.caches == Checks::Caches::kOff ? kLong : kShort),
      group_(group),
      random_((checks.seed + 1) * 0x9e3779b97f4a7c15 ^ (group.linear + 1) * 0xbf58476d1ce4e5b9) {}

Turns::Turn Turns::next() {
  const size_t count = group_.threads.size();
  const size_t start = interleave_ ? next_random(random_) % count : next_;
  for (size_t k = 0; k < count; ++k) {
    const size_t i = (start + k) % count;
    Thread& thread = *group_.threads[i];
    if (thread.state != ThreadState::kReady) continue;
    next_ = (i + 1) % count;
    return {&thread, interleave_ && count > 1 ? 1 + next_random(random_) % 256 : instructions_};
  }
  return {nullptr, 0};
}

}  // namespace xesim
