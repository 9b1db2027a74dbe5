// Computes, before the kernels of a call run, what their mask reads: the least and the greatest
// document id of each span of positions (kernels/attention/documents.hpp), or the blocks that a
// mask_mod leaves out (kernels/attention/listed.hpp).
#pragma once

#include "host/arrays/place.hpp"
#include "host/attention/desc.hpp"

namespace xeflash {

class Prepass {
 public:
  Prepass(const Problem& problem, const Place& place);
  // Returns the size of its results in memory: 0 if there is nothing to compute.
  int64_t floats() const { return results_ + more_; }
  void launch(Launcher& launcher, ScoreModParams& params, float* scratch) const;

 private:
  void find_spans(const Problem& problem, const Place& place);
  void find_blocks(const Problem& problem, const Place& place);

  const Kernels* kernels_ = nullptr;
  bool of_documents_ = false;
  int64_t groups_ = 0;              // of the first kernel, each of which has a result
  int64_t results_ = 0, more_ = 0;  // words; those that only the kernels read
  int64_t batch_ = 0, head_ = 0;    // strides
};

}  // namespace xeflash
