// out = softmax(scale A B^T + bias) along rows, or its logarithm; A B^T is never in memory as a
// whole. A thread takes Br rows, and of these Bn columns at a time, in steps of Bk inputs.
//   softmax_of_kept   computes each score once and keeps the scores of its rows near the thread
//   softmax_by_two    computes each score twice: once to find m and l, once for the result
// A row whose scores are all -inf becomes 0, or -inf in the logarithm.
//   j: first column of a tile     A B S P: tiles     m: maximum of a row, l: sum
#pragma once

#include "products/scores.hpp"

namespace xeflash {

constexpr int kLogDegree = 6;  // of exp2's polynomial: log l is near 0 where one column dominates

template <int R>
XF_INLINE ColVec<R> inverse_or_zero(const ColVec<R>& l) {
  return map([](auto x) { return select(x == 0.f, decltype(x)(0.f), divide(decltype(x)(1.f), x)); },
             l);
}
template <int R>
XF_INLINE ColVec<R> log_or_zero(const ColVec<R>& l) {
  const auto log_of = [](auto x) {
    using V = decltype(x);
    return select(x == 0.f, V(0.f), V(log2(x) * kLn2));
  };
  return map(log_of, l);
}

template <class Config>
XF_INLINE void softmax_of_kept(const MatmulSoftmaxParams& p, const ScoreRows<Config>& rows,
                               int64_t worker) {
  constexpr int Br = Config::rows, Bn = Config::columns, Bk = Config::inputs;
  const auto a = rows.a(), b = rows.b();
  KeptScores<Config> S(p, worker);
  ColVec<Br> m(kNoScore);
  for (int k = 0; k < p.inputs; k += Bk) {
    typename ScoreRows<Config>::InputTile A;
    with_inputs<Br, Bk>(a, k, [&](const auto& inputs) { load(A, inputs); });
    for (int j = 0; j < p.columns; j += Bn) {
      rows.add_product(S.at(j), A, b, j, k);  // S += A B^T
      if (k + Bk < p.inputs) continue;
      rows.finish(S.at(j), j);       // S = scale S + bias
      m = max(m, row_max(S.at(j)));  // m = max(m, rowmax S)
    }
  }
  ColSum<Br> l;
  for (int j = 0; j < p.columns; j += Bn) {  // P = exp(S - m), l += rowsum P
    if (p.is_log)
      exp_of_rows<kLogDegree, false>(S.at(j), m, l);
    else
      exp_of_rows<Config::exp2_degree, true>(S.at(j), m, l);
  }
  const ColVec<Br> sums = l, log_l = log_or_zero(sums);
  const ColVec<Br> factor = p.is_log ? ColVec<Br>(1.f) : inverse_or_zero(sums);
  const auto out = rows.out();
  for (int j = 0; j < p.columns; j += Bn) {
    if (p.is_log) {  // log P = S - m - log l
      S.at(j) -= m;
      S.at(j) -= log_l;
    }
    rows.store_times(out, S.at(j), factor, j);  // P = P / l
  }
}

template <class Config>
XF_INLINE void softmax_by_two(const MatmulSoftmaxParams& p, const ScoreRows<Config>& rows) {
  constexpr int Br = Config::rows, Bn = Config::columns, Bk = Config::inputs;
  using ScoreTile = typename ScoreRows<Config>::ScoreTile;
  const auto a = rows.a(), b = rows.b();
  typename ScoreRows<Config>::InputTile A;
  if constexpr (Config::one_step) load(A, a);
  const auto scores = [&](ScoreTile& S, int j) {  // S = scale A B^T + bias
    for (int k = 0; k < p.inputs; k += Bk) {
      if constexpr (!Config::one_step) {
        with_inputs<Br, Bk>(a, k, [&](const auto& inputs) { load(A, inputs); });
      }
      rows.add_product(S, A, b, j, k);
      if constexpr (Config::one_step) break;
    }
    rows.finish(S, j);
  };

  ColVec<Br> m(kNoScore);
  ColSum<Br> l;
  for (int j = 0; j < p.columns; j += Bn) {
    ScoreTile S;
    scores(S, j);
    const ColVec<Br> m_new = max(m, row_max(S));  // m_new = max(m, rowmax S)
    // l = exp(m - m_new) l + rowsum exp(S - m_new)
    l *= map([](auto from, auto to) { return exp2(decltype(from)((from - to) * kLog2e)); }, m,
             m_new);
    exp_of_rows<kLogDegree, false>(S, m_new, l);
    m = m_new;
  }
  const ColVec<Br> sums = l, log_l = log_or_zero(sums);
  const ColVec<Br> factor = p.is_log ? ColVec<Br>(1.f) : inverse_or_zero(sums);
  const auto out = rows.out();
  for (int j = 0; j < p.columns; j += Bn) {
    ScoreTile S;
    scores(S, j);
    S -= m;
    if (p.is_log)  // log P = S - m - log l
      S -= log_l;
    else  // P = exp(S - m)
      exp2_minus<Config::exp2_degree>(S, kLog2e, ColVec<Br>(0.f));
    rows.store_times(out, S, factor, j);  // P = P / l
  }
}

template <class Config>
XF_INLINE void matmul_softmax(const MatmulSoftmaxParams& p) {
  using Scores = ScoreRows<Config>;
  allocate_shared<typename Scores::ScoreTile, shared_bytes<typename Scores::ColumnTile>()>();
  const int worker = static_cast<int>(Group::index());
  for (int i = worker; i < p.groups; i += p.workers) {
    const Scores rows(p, i);
    if (rows.is_empty()) continue;
    if constexpr (Config::products == 1)
      softmax_of_kept<Config>(p, rows, worker);
    else
      softmax_by_two<Config>(p, rows);
  }
}

}  // namespace xeflash
