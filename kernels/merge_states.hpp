// Merges attention over different keys: L = log sum_s exp L_s, O = sum_s exp(L_s - L) O_s, as
// combine.hpp does for the splits of a call. One work-item per row of a sequence.
//   An infinite L_s says that the row saw none of these keys. A NaN makes the result NaN.
// Word: add_scaled  adds a row in memory, times a factor, to a row
#pragma once

#include "attention/softmax.hpp"

namespace xeflash {

// O and the LSE of one row of a state.
template <class T>
struct StateRow {
  T* o;
  float* lse;

  XF_INLINE StateRow(const StateArg& s, int batch, int row, int head)
      : o(static_cast<T*>(s.o.data) + batch * s.o.batch + row * s.o.row + head * s.o.head),
        lse(s.lse + batch * s.lse_batch + row * s.lse_row + head * s.lse_head) {}
  XF_INLINE bool saw_keys() const { return magnitude(*lse) != kInf; }
};

template <class Config>
XF_INLINE void merge_states(const MergeParams& p) {
  constexpr int dv = Config::head_dim_v;
  constexpr int kHeadroom = 4;  // for at most 2^4 weights: kMaxStates and the carried state
  using T = typename Config::Element;
  const Group::Index group = Group::index();
  const int batch = static_cast<int>(group / p.rows), i = static_cast<int>(group % p.rows);
  for (int head = 0; head < p.heads; ++head) {
    const StateRow<float> carried(p.carried, batch, i, head);
    const auto each_state = [&](auto f) {
      if (p.reads_carried) f(carried);
      XF_UNROLL for (int s = 0; s < kMaxStates; ++s) {  // unrolled: parameters may be in registers
        if (s < p.count) f(StateRow<T>(p.states[s], batch, i, head));
      }
    };

    RowState<float> row(kNoScore, 0.f, kHeadroom);
    each_state([&](const auto& part) {
      if (part.saw_keys()) row.m = max(row.m, *part.lse);
    });
    RowTile<1, dv> O;
    fill(O, 0.f);
    each_state([&](const auto& part) {
      if (!part.saw_keys()) return;
      const float weight = exp2((*part.lse - row.m) * kLog2e - kHeadroom);  // exp(L_s - max L)
      row.l += weight;
      add_scaled(O, part.o, weight);
    });

    if (p.leaves_carried) {
      store_row(one_row(carried.o), O, 0, row.normaliser());
      *carried.lse = row.log_sum_exp(kInf);
    } else {
      const StateRow<T> merged(p.merged, batch, i, head);
      store_row(one_row(merged.o), O, 0, row.normaliser());
      *merged.lse = row.log_sum_exp(kInf);
    }
  }
}

}  // namespace xeflash
