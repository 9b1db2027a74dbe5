#include "host/attention/prepass.hpp"

#include <algorithm>

#include "attention/params.hpp"
#include "host/attention/blocks.hpp"

namespace xeflash {
namespace {

Desc describe_prepass(Algorithm algorithm, const Place& place) {
  Desc desc;
  desc.algorithm = algorithm;
  desc.dtype = DType::kF32;  // any, as the head dims
  desc.head_dim = desc.head_dim_v = 8;
  if (place.device.facts.type != "cpu") desc.access = Access::kDwords;
  return desc;
}

}  // namespace

Prepass::Prepass(const Problem& p, const Place& place) {
  // Kernels that look for queries also write the gradients of keys that no query sees.
  if (p.batch * p.heads_q * p.sk == 0) return;
  if (p.documents.data) find_spans(p, place);
  if (p.mask_mod.id != ScoreModId::kNone && !p.blocks.data) find_blocks(p, place);
}

void Prepass::find_spans(const Problem& p, const Place& place) {
  const Desc desc = describe_prepass(Algorithm::document_spans, place);
  kernels_ = &find_kernels(desc, place);
  of_documents_ = true;
  const Array& ids = p.documents;
  const int64_t spans = divide_up(p.sk, kSpan);
  const bool shared = ids.ndim == 1 || ids.strides[0] == 0;
  groups_ = spans * (shared ? 1 : ids.shape[0]);
  results_ = 2 * groups_;
  batch_ = shared || ids.shape[0] == 1 ? 0 : spans;
  check_groups(static_cast<uint64_t>(groups_), desc.access);
}

void Prepass::find_blocks(const Problem& p, const Place& place) {
  if (p.sq == 0) return;
  Desc desc = describe_prepass(Algorithm::mask_blocks, place);
  desc.mask_mod = p.mask_mod.id;
  kernels_ = &find_kernels(desc, place);
  const int64_t heads = p.has_blocks_of_heads() ? p.heads_q : 1;
  const int64_t copies = heads * (p.has_blocks_of_sequences() ? p.batch : 1);
  groups_ = copies * p.row_blocks() * p.key_blocks();
  const int64_t words = words_of_blocks(p);
  results_ = copies * words;
  more_ = groups_;
  head_ = heads > 1 ? words : 0;
  batch_ = copies > heads ? heads * words : 0;
  check_groups(static_cast<uint64_t>(std::max(groups_, results_)), desc.access);
}

void Prepass::launch(Launcher& launcher, ScoreModParams& params, float* scratch) const {
  if (!kernels_) return;
  auto* words = reinterpret_cast<int32_t*>(scratch);
  const auto groups = static_cast<uint64_t>(groups_);
  if (of_documents_) {
    params.documents.least = words;
    params.documents.greatest = words + groups_;
    params.documents.batch_spans = batch_;
    return launcher(*kernels_->entries[0], static_cast<const FwdParams&>(params), groups);
  }
  params.blocks.bits = words;
  params.blocks.kinds = words + results_;
  params.blocks.batch = batch_;
  params.blocks.head = head_;
  const auto& with_captures = static_cast<const ScoreModParams&>(params);
  launcher(*kernels_->entries[0], with_captures, groups);
  launcher(*kernels_->entries[1], with_captures, static_cast<uint64_t>(results_));
}

}  // namespace xeflash
