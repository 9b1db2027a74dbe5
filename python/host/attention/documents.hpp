// Computes, before the kernels of a call run, the least and the greatest document id of each span
// of positions: see kernels/attention/documents.hpp.
#pragma once

#include "host/arrays/place.hpp"
#include "host/attention/desc.hpp"

namespace xeflash {

class DocumentSpans {
 public:
  DocumentSpans(const Problem& problem, const Place& place);
  // Returns the bytes of scratch memory for them: 0 without documents.
  int64_t floats() const { return 2 * spans_ * sequences_; }
  void launch(Launcher& launcher, FwdParams& params, float* scratch) const;

 private:
  const Kernels* kernels_ = nullptr;
  int64_t spans_ = 0, sequences_ = 0;
};

}  // namespace xeflash
