// Merges the splits of a row (Flash-Decoding): L = log sum_s exp L_s, O = sum_s exp(L_s - L) O_s.
#pragma once

#include "attention/partial.hpp"

namespace xeflash {

template <class Config>
XF_INLINE void combine(const FwdParams& p) {
  constexpr int dv = Config::head_dim_v;
  using T = typename Config::Element;
  const GroupIndex group = group_index();
  const int batch = static_cast<int>(group / p.heads_q), head = static_cast<int>(group % p.heads_q);
  const Sequence seq(p, batch);
  if (seq.sq == 0) return;
  const Partial part(p, batch, head, dv);

  RowState row{-kInf, 0.f};
  for (int s = 0; s < p.splits; ++s) row.m = max(row.m, part.lse[s] * kLog2e);
  RowTile<1, dv> O;
  fill(O, 0.f);
  for (int s = 0; s < p.splits; ++s) {
    if (part.lse[s] == -kInf) continue;
    const float weight = exp2(part.lse[s] * kLog2e - row.m);  // exp(L_s - max L)
    row.l += weight;
    add_scaled(O, part.o + s * part.o_stride, weight);
  }
  store_row(seq.q_rows<T>(p.o, head, 0).data, O, 0, row.normaliser());
  if (p.lse) *seq.lse(p, head) = row.log_sum_exp(p.empty_lse);
}

}  // namespace xeflash
