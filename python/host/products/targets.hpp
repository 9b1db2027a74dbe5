// Reads the target tokens of the rows of a head.
#pragma once

#include <optional>

#include "host/products/logits.hpp"

namespace xeflash {

struct Targets {
  Array array;
  TargetArg arg;
};
Targets read_targets(const py::object& object, const Head& head, const Checker& check);
// Sets the token whose rows do not count. Refuses other tokens that the head does not have, if the
// host can read them.
void set_ignored(Targets& targets, std::optional<int64_t> ignored, const Head& head,
                 const Checker& check);

// Reads the memory for all logits of a head; without it the array has no data.
Array read_logits(const py::object& object, CrossEntropyParams& p, const Head& head,
                  const Checker& check);

// Returns the number of columns of a part, whose results are merged at the end. It depends on the
// head alone, so that the result of a row does not depend on other rows.
int64_t part_of(const Head& head);

}  // namespace xeflash
