// Merges the splits of a row (Flash-Decoding), by a work-item for each row:
//   O = sum_s exp(m_s - m) l_s O_s / l, where m is the largest m_s and l = sum_s exp(m_s - m) l_s
//   P: the weights of the splits
// Word: load_row  reads the first values of a row; the others become -inf
#pragma once

#include "attention/partial.hpp"
#include "attention/softmax.hpp"

namespace xeflash {

template <class Config>
XF_INLINE void combine(const FwdParams& p) {
  constexpr int dv = Config::head_dim_v, Bs = 16;  // splits at a time
  // Where P has headroom, l <= 1 of 2^24 keys (see Exponents); all splits have fewer than 2^31.
  constexpr int kHeadroom = 7;
  using T = typename Config::Element;
  Group::Index group = Group::index();
  const int head = static_cast<int>(group % p.heads_q);
  group /= p.heads_q;
  const int query = static_cast<int>(group % p.max_q), batch = static_cast<int>(group / p.max_q);
  const Sequence seq(p, batch);
  if (query >= seq.sq) return;
  const Partial partial(p, dv);
  const float* const first = partial.of(p, seq, head, query);
  const Rows<const float> o_rows{first, partial.stride, p.splits};
  const float *const all_m = first + p.splits * partial.stride, *const all_l = all_m + p.splits;
  const Exponents exponents = exponents_of<Config>(p);
  RowVec<1> m(kNoScore);
  for (int s = 0; s < p.splits; s += Bs) {
    RowTile<1, Bs> M;
    load_row(M, all_m + s, p.splits - s);
    m = max(m, row_max(M));
  }
  RowTile<1, dv> O;
  fill(O, 0.f);
  RowSum<1> l;
  for (int s = 0; s < p.splits; s += Bs) {
    RowTile<1, Bs> P;
    fill(P, 0.f);
    each_in_row(P, 0, s, [&](auto zero, auto split) {
      const auto at = at_most(split, p.splits - 1);
      const Floats m_s = value_at(all_m, at), l_s = value_at(all_l, at);
      const Floats weight = exponents.decay(m_s, Floats(m[0])) * l_s;
      return select(split < p.splits, Floats(weight * power_of_two(-kHeadroom)), zero);
    });
    l += P;                                 // P = exp(m_s - m) l_s, l = rowsum P
    accumulate_rows(O, P, o_rows.from(s));  // O += P O_s
  }
  RowState<float> row(m[0], RowVec<1>(l)[0], exponents);
  row.headroom += kHeadroom;
  if (p.sinks) row.add_sink(p.sinks[head]);
  store_output<T>(p, seq, head, query, 0, dv, O, 0, row.normaliser());
  if (p.lse) seq.first_of_rows(p, p.lse, head)[query] = row.log_sum_exp(p.empty_lse);
}

}  // namespace xeflash
