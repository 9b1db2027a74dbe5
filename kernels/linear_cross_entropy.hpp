// loss = log sum exp(z) - z[target] of each row of logits z = x W^T. The logits need not be in
// memory as a whole: the online softmax (Milakov and Gimelshein, 2018) over tiles of columns.
//   linear_cross_entropy   m, l, z[target] and d of a block of rows in one part of the vocabulary
//   loss_of_rows           merges the parts of a row into its loss
//   sum_of_losses          adds the losses of all rows, in one work-group
//   j: first column of a tile     S: tile of z     m: maximum of a row, l: sum of exp(z - m)
//   d: sum of z - m, for label smoothing
#pragma once

#include "products/logits.hpp"

namespace xeflash {

constexpr int kExpDegree = 6;  // of exp2's polynomial

// Returns one kind of statistic (see kStats) of one part of the vocabulary, for the rows from
// `row`.
XF_INLINE Rows<float> stats_of(const CrossEntropyParams& p, int part, int kind, int row) {
  return {p.stats + (int64_t{part} * kStats + kind) * p.rows + row, 1, p.rows - row};
}

template <class Config>
XF_INLINE void linear_cross_entropy(const CrossEntropyParams& p) {
  constexpr int Br = Config::rows, Bn = Config::columns;
  each_block<Config>(p, [&](const LogitRows<Config>& rows, int worker) {
    const KeptInputs<typename Config::Element, Br, Config::inputs> x(p.kept, worker, rows.x());
    const auto targets = targets_of<Br>(p.target, rows.row, p.rows, p.columns);
    ColVec<Br> m(kNoScore), z(0.f), d(0.f);
    ColSum<Br> l;
    for (int j = rows.begin(); j < rows.end(); j += Bn) {
      Tile<Br, Bn> S;
      rows.logits(S, x, j);
      const ColVec<Br> m_new = max(m, row_max(S));  // m_new = max(m, rowmax S)
      l *= decay(m, m_new);                         // l = exp(m - m_new) l
      exp_of_rows<kExpDegree, false>(S, m_new, l);  //     + rowsum exp(S - m_new)
      pick(z, S, targets, j);                       // z = S[target]
      if (p.sums_logits) {                          // d = d + n (m - m_new)
        const float seen = static_cast<float>(j - rows.begin());
        const auto moved = [&](auto all, auto from, auto to, auto more) {
          const decltype(all) step = (from - to) * seen;
          return all + select(to == from, decltype(all)(0.f), step) + more;
        };
        d = map(moved, d, m, m_new, sum_of_differences(S, m_new, j, p.columns));
      }
      m = m_new;
      if (p.logits) store_logits<Config>(p, S, rows.row, j);
    }
    if (rows.row >= p.rows) return;
    store(stats_of(p, rows.part, 0, rows.row), m);
    store(stats_of(p, rows.part, 1, rows.row), ColVec<Br>(l));
    store(stats_of(p, rows.part, 2, rows.row), z);
    store(stats_of(p, rows.part, 3, rows.row), d);
  });
}

template <class Config>
XF_INLINE void loss_of_rows(const CrossEntropyParams& p) {
  constexpr int R = kLanes;
  const int row = static_cast<int>(Group::index()) * R;
  if (row >= p.rows) return;
  ColVec<R> m(kNoScore), l(0.f), z(0.f), d(0.f);
  for (int part = 0; part < p.parts; ++part) {
    const auto of = [&](int kind) { return load_values<R>(stats_of(p, part, kind, row), 0.f); };
    const ColVec<R> m_part = of(0), m_new = max(m, m_part);
    const ColVec<R> a = decay(m, m_new), b = decay(m_part, m_new);
    l = map([](auto x, auto a, auto y, auto b) { return x * a + y * b; }, l, a, of(1), b);
    z = map([](auto x, auto y) { return x + y; }, z, of(2));
    const float before = static_cast<float>(part) * p.part;
    const float here =
        static_cast<float>(p.columns - part * p.part < p.part ? p.columns - part * p.part : p.part);
    if (p.sums_logits) {
      const auto added = [&](auto x, auto m, auto y, auto m_part, auto to) {
        using V = decltype(x);
        const V shift_x = select(m == to, V(0.f), V((m - to) * before));
        const V shift_y = select(m_part == to, V(0.f), V((m_part - to) * here));
        return x + shift_x + (y + shift_y);
      };
      d = map(added, d, m, of(3), m_part, m_new);
    }
    m = m_new;
  }
  const ColVec<R> log_l = map([](auto x) { return decltype(x)(log2_of_any(x) * kLn2); }, l);
  const ColVec<R> lse = map([](auto m, auto x) { return m + x; }, m, log_l);
  const Rows<float> state{p.state + row, 1, p.rows - row};
  if (p.state) {
    store(state, m);
    store(Rows<float>{p.state + p.rows + row, 1, p.rows - row}, log_l);
  }
  if (p.lse) store(Rows<float>{p.lse + row, 1, p.rows - row}, lse);
  if (!p.losses) return;
  const ColVec<R> counts = counts_of<R>(p.target, row, p.rows, p.columns);
  const auto loss_of = [&](auto log_l, auto z, auto m, auto d, auto lse, auto counts) {
    using V = decltype(z);
    V loss = log_l - (z - m);
    if (p.sums_logits) {  // (1 - e) (lse - z) + e (lse - mean z)
      const V smooth = log_l - d * (1.f / p.columns);
      loss = loss * (1.f - p.smoothing) + smooth * p.smoothing;
    }
    if (p.z_loss != 0.f) loss = loss + lse * lse * p.z_loss;
    return select(counts == V(0.f), V(0.f), V(loss * counts * p.sign));
  };
  store(Rows<float>{p.losses + row, 1, p.rows - row}, map(loss_of, log_l, z, m, d, lse, counts));
}

template <class Config>
XF_INLINE void sum_of_losses(const CrossEntropyParams& p) {
  constexpr int R = kLanes, kChain = 64;  // rows that a lane adds before their sum joins the total
  if (Group::index() > 0) return;
  ColVec<R> total(0.f), counted(0.f);
  const auto plus = [](auto x, auto y) { return x + y; };
  for (int first = 0; first < p.rows; first += kChain * R) {
    ColVec<R> sum(0.f);
    for (int row = first; row < p.rows && row < first + kChain * R; row += R) {
      sum = map(plus, sum, load_values<R>(Rows<float>{p.losses + row, 1, p.rows - row}, 0.f));
      const auto one = [](auto x) {
        return select(x == decltype(x)(0.f), decltype(x)(0.f), decltype(x)(1.f));
      };
      counted = map(plus, counted, map(one, counts_of<R>(p.target, row, p.rows, p.columns)));
    }
    total = map(plus, total, sum);
  }
  const float divisor = p.divisor > 0.f ? p.divisor : sum_of(counted);
  store(Rows<float>{p.sum, 1, 1}, ColVec<R>(sum_of(total) / divisor));
}

}  // namespace xeflash
