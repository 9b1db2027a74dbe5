// Tokens of the rows of a head.
#pragma once

#include <limits>

#include "logits.hpp"

namespace xeflash {

constexpr int64_t kNoTarget = std::numeric_limits<int64_t>::min();  // ignored: no token
constexpr int64_t kAnyTarget = kNoTarget + 1;  // whose gradients its caller knows

struct Targets {
  Array array;
  TargetArg arg;
};
// Refuses tokens that the head does not have where the host can read them.
Targets read_targets(const py::object& object, const Head& head, int64_t ignored,
                     const Checker& check);

// Memory for all logits of a head; without, none.
Array read_logits(const py::object& object, CrossEntropyParams& p, const Head& head,
                  const Checker& check);

// Columns of a part, whose results come together at the end: by the head alone, so that a row's
// result does not depend on others.
int64_t part_of(const Head& head);

}  // namespace xeflash
