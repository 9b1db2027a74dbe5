// Which thread runs next. No result may depend on it: under the check "interleave" groups and the
// turns of their threads come in an order that the seed chooses; else groups come by number, and
// each thread runs as long as it can, or, where caches are counted, a short time.
#pragma once

#include <cstdint>

#include "machine/checks.hpp"

namespace xesim {

struct Group;
struct Thread;

// The order in which the groups of a launch start.
class GroupOrder {
 public:
  GroupOrder(const Checks& checks, uint64_t groups);
  uint64_t operator[](uint64_t k) const;

 private:
  const uint64_t groups_;
  uint64_t step_ = 1, shift_ = 0;
};

// The turns of one group's threads. Barriers say who is ready.
class Turns {
 public:
  Turns(const Checks& checks, const Group& group);

  struct Turn {
    Thread* thread;         // null: none can run
    uint64_t instructions;  // at most
  };
  Turn next();

 private:
  const bool interleave_;
  const uint64_t instructions_;
  const Group& group_;
  uint64_t random_;
  size_t next_ = 0;
};

}  // namespace xesim
