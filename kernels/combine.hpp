// Merges the splits of a row (Flash-Decoding): L = log sum_s exp L_s, O = sum_s exp(L_s - L) O_s,
// which is a softmax over the splits: flash_decode's loop with L_s for scores and O_s for V.
#pragma once

#include "attention/partial.hpp"
#include "attention/softmax.hpp"

namespace xeflash {

template <class Config>
XF_INLINE void combine(const FwdParams& p) {
  constexpr int dv = Config::head_dim_v, Bs = 16;  // splits at a time
  using T = typename Config::Element;
  constexpr int kDegree = 6;  // of exp2's polynomial: all of this is fp32
  const GroupIndex group = group_index();
  const int batch = static_cast<int>(group / p.heads_q), head = static_cast<int>(group % p.heads_q);
  const Sequence seq(p, batch);
  if (seq.sq == 0) return;
  const Partial part(p, batch, head, dv);

  const Rows<const float> o_rows{part.o.data, part.o.stride, p.splits};
  RowTile<1, dv> O;
  fill(O, 0.f);
  RowVec<1> m(kNoScore);
  RowSum<1> l;
  for (int s = 0; s < p.splits; s += Bs) {
    RowTile<1, Bs> L, P;
    load_row(L, part.lse + s, p.splits - s);
    online_softmax<kDegree>(P, L, O, m, l, kLog2e);  // P = exp(L - m), l = rowsum P
    accumulate_rows(O, P, o_rows.from(s));           // O += P O_s
  }
  const RowState row{m[0], RowVec<1>(l)[0]};
  store_row(seq.q_rows<T>(p.o, head, 0), O, 0, row.normaliser());
  if (p.lse) *seq.lse(p, head) = row.log_sum_exp(p.empty_lse);
}

}  // namespace xeflash
