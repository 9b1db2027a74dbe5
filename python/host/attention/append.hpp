// The launch that appends a call's keys and values to its cache, and rotates its queries.
#pragma once

#include <optional>

#include "host/arrays/place.hpp"
#include "host/attention/desc.hpp"
#include "host/attention/problem.hpp"

namespace xeflash {

class Append {
 public:
  // Does nothing if the call has nothing to append or rotate.
  static std::optional<Append> prepare(const Problem& problem, const FwdRequest& request,
                                       const Place& place);

  // Rotated queries take the place of the given ones in `attention`.
  void launch(Launcher& launcher, FwdParams& attention);

 private:
  const Kernels* kernels_ = nullptr;
  AppendParams params_{};
  Array rotated_q_;
  uint64_t groups_ = 0;
};

}  // namespace xeflash
