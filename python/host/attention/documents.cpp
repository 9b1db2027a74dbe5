#include "host/attention/documents.hpp"

#include "attention/params.hpp"

namespace xeflash {

DocumentSpans::DocumentSpans(const Problem& p, const Place& place) {
  // Kernels that look for queries also write the gradients of keys that no query sees.
  if (!p.documents.data || p.batch * p.heads_q * p.sk == 0) return;
  Desc desc;
  desc.algorithm = Algorithm::document_spans;
  desc.dtype = DType::kF32;  // any, as the head dims
  desc.head_dim = desc.head_dim_v = 8;
  if (place.device.facts.type != "cpu") desc.access = Access::kDwords;
  kernels_ = &find_kernels(desc, place);
  spans_ = divide_up(p.sk, kSpan);
  const Array& ids = p.documents;
  sequences_ =
      ids.ndim == 2 && ids.strides[0] != 0 ? ids.shape[0] : 1;  // sequences with ids of their own
  check_groups(static_cast<uint64_t>(spans_ * sequences_), desc.access);
}

void DocumentSpans::launch(Launcher& launcher, FwdParams& params, float* scratch) const {
  if (!kernels_) return;
  DocumentsArg& to = params.documents;
  to.least = reinterpret_cast<int32_t*>(scratch);
  to.greatest = to.least + spans_ * sequences_;
  to.batch_spans = to.batch ? spans_ : 0;
  launcher(*kernels_->entries[0], params, static_cast<uint64_t>(spans_ * sequences_));
}

}  // namespace xeflash
