// A cache of 64-byte lines, in sets of 16 of which the line goes that was not used for the longest
// time.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace xesim {

class Cache {
 public:
  static constexpr uint64_t kLineBytes = 64, kWays = 16;

  struct Line {
    uint64_t number : 62 = 0;  // address / 64; 0: none
    uint64_t dirty : 1 = 0;
    uint64_t unused : 1 = 0;  // a prefetch has brought it, and nobody has asked for it since
    uint64_t held = 0;        // a bit per byte that is there
  };

  explicit Cache(uint64_t bytes) {
    const uint64_t sets = std::max<uint64_t>(bytes / (kLineBytes * kWays), 1);
    bits_ = std::countr_zero(sets);
    odd_ = sets >> bits_;
    lines_.resize(sets * kWays);
  }

  uint64_t bytes() const { return lines_.size() * kLineBytes; }

  // The line where it is, or null: nobody has used it by that.
  Line* find(uint64_t number) {
    Line* set = set_of(number);
    Line* found = std::find_if(set, set + kWays, [=](Line line) { return line.number == number; });
    return found == set + kWays ? nullptr : found;
  }

  // Makes the line the set's newest. `gone` is what had to leave for it, `missed` whether it was
  // not there.
  struct Use {
    Line& line;
    Line gone;
    bool missed;
  };
  Use use(uint64_t number) {
    Line* set = set_of(number);
    Line* found = find(number);
    Use result{*set, {}, found == nullptr};
    Line line{.number = number};
    if (found == nullptr) {
      found = set + kWays - 1;
      result.gone = *found;
    } else {
      line = *found;
    }
    std::move_backward(set, found, found + 1);
    *set = line;
    return result;
  }

 private:
  // The number of sets is odd_ x 2^bits_. Blocks of 2^bits_ lines take turns at the parts of the
  // cache, so that consecutive lines fill all sets evenly; higher bits of the address are hashed
  // into the lower ones, so that lines a power of two apart do not meet in few of them.
  Line* set_of(uint64_t number) {
    const uint64_t block = number >> bits_, mask = (uint64_t{1} << bits_) - 1;
    const uint64_t hash = block * 0x9e3779b97f4a7c15 >> 40;  // Fibonacci hashing (Knuth)
    const uint64_t set = (block % odd_ << bits_) + ((number ^ hash) & mask);
    return &lines_[set * kWays];
  }

  int bits_;
  uint64_t odd_;
  std::vector<Line> lines_;
};

}  // namespace xesim
