#include "host/attention/append.hpp"

#include <algorithm>

namespace xeflash {

std::optional<Append> Append::prepare(const Problem& p, const FwdRequest& r, const Place& place) {
  const Cache& c = p.cache;
  const bool rotates_q = c.rotary_dim > 0 && p.sq > 0;
  if (!c.added && !rotates_q) return {};
  Desc desc = describe(Algorithm::append, p);
  const Layout cached = p.k_layout(r.layout);
  desc.access = access_of_rows({{&p.q, r.layout},
                                {&c.new_k, r.layout},
                                {&c.new_v, r.layout},
                                {&p.k, cached},
                                {&p.v, cached}},
                               place.device.facts.arch);
  Append a;
  a.kernels_ = &find_kernels(desc, place);
  AppendParams& params = a.params_;
  params.q = tensor_arg(p.q, r.layout);
  params.k = tensor_arg(c.new_k, r.layout);
  params.v = tensor_arg(c.new_v, r.layout);
  if (c.rotary_dim) {
    params.cos = {c.cos.data, 0, c.cos.strides[0], 0};
    params.sin = {c.sin.data, 0, c.sin.strides[0], 0};
    params.rotary_dim = static_cast<int32_t>(c.rotary_dim);
    params.rotary_rows = static_cast<int32_t>(std::min(c.cos.shape[0], kMaxLength));
    params.interleaved = r.cache.rotary_interleaved;
    params.positions = reinterpret_cast<const int32_t*>(c.positions.data);
    params.position_batch = c.positions.strides[0];
    params.q_in_order = c.positions.data || r.causal || r.window_left >= 0 || r.window_right >= 0;
  }
  if (rotates_q) {
    params.rotated_q = static_cast<int32_t>(p.sq);
    a.rotated_q_ = new_array(p.q, p.q.dtype, {p.batch, p.sq, p.heads_q, p.d});
  }
  params.finds_scales = c.scales_of_rows;
  params.k_inverse = 1 / c.k_factor;
  params.v_inverse = 1 / c.v_factor;
  params.tokens = static_cast<int32_t>(std::max<int64_t>(c.added, params.rotated_q));
  a.groups_ = static_cast<uint64_t>(p.batch) * static_cast<uint64_t>(params.tokens);
  check_groups(a.groups_, desc.access);
  return a;
}

void Append::launch(Launcher& launcher, FwdParams& attention) {
  if (rotated_q_.data) attention.q = tensor_arg(rotated_q_, Layout::kBSHD);
  params_.attention = attention;
  launcher(*kernels_->entries[0], params_, groups_);
}

}  // namespace xeflash
