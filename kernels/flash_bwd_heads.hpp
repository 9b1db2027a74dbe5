// Gradients of a head's sink and of its ALiBi slope: sums over its rows, in their order. Earlier
// kernels stored the values of each row: flash_bwd_dq or flash_bwd the origin and Delta,
// flash_bwd_bias row_slopes.
//   dsink = -sum exp(sink - m) / l Delta
#pragma once

#include "attention/origin.hpp"

namespace xeflash {

// sum += f(row) for all rows, 16 at a time.
template <class F>
XF_INLINE void add_of_rows(RowSum<1>& sum, int rows, F f) {
  for (int row = 0; row < rows; row += 16) {
    RowTile<1, 16> some;
    fill(some, 0.f);
    each_in_row(some, 0, row, [&](auto zero, auto r) {
      return select(r < rows, Floats(f(at_most(r, rows - 1))), zero);
    });
    sum += some;
  }
}

template <class Config>
XF_INLINE void flash_bwd_heads(const BwdParams& p) {
  const int head = static_cast<int>(Group::index());
  RowSum<1> sinks, slopes;
  for (int b = 0; b < p.batch; ++b) {
    const Sequence seq(p, b);
    if (p.dsinks) {
      const float* base = seq.per_row<const float>(p, p.base, head).data;
      const float* top = seq.per_row<const float>(p, p.top, head).data;
      const float* delta = seq.per_row<const float>(p, p.delta, head).data;
      const float sink = p.sinks[head];
      add_of_rows(sinks, seq.sq, [&](auto row) {
        const Floats own = above_base(sink, Floats(value_at(base, row)), p.unit);
        return -exp2(Floats(own - unmarked(Floats(value_at(top, row))))) * value_at(delta, row);
      });
    }
    if (p.dalibi) {
      const float* row_slopes = seq.per_row<const float>(p, p.row_slopes, head).data;
      add_of_rows(slopes, seq.sq, [&](auto row) { return value_at(row_slopes, row); });
      if (p.dalibi_batch) {
        p.dalibi[b * p.dalibi_batch + head] = RowVec<1>(slopes)[0];
        slopes = RowSum<1>();
      }
    }
  }
  const float keep_scale = typename Config::Drop(p, Sequence(p, 0), 0).keep_scale;
  if (p.dalibi && !p.dalibi_batch) p.dalibi[head] = RowVec<1>(slopes)[0];
  if (p.dsinks) p.dsinks[head] = RowVec<1>(sinks)[0] * keep_scale;
}

}  // namespace xeflash
