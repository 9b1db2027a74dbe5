// Tokens of the rows of a head.
#pragma once

#include <optional>

#include "host/products/logits.hpp"

namespace xeflash {

struct Targets {
  Array array;
  TargetArg arg;
};
Targets read_targets(const py::object& object, const Head& head, const Checker& check);
// Says which token's rows do not count, and refuses others that the head does not have where the
// host can read them.
void set_ignored(Targets& targets, std::optional<int64_t> ignored, const Head& head,
                 const Checker& check);

// Memory for all logits of a head; without, none.
Array read_logits(const py::object& object, CrossEntropyParams& p, const Head& head,
                  const Checker& check);

// Columns of a part, whose results come together at the end: by the head alone, so that a row's
// result does not depend on others.
int64_t part_of(const Head& head);

}  // namespace xeflash
