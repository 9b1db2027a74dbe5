// Gradients of the arrays that a score_mod captured. The blocks of rows are divided among workers.
// Each worker recomputes the scores of its blocks and adds to its own copy of all gradients; then
// add_captures sums the copies in the order of the workers. A kernel that stores Delta, such as
// flash_bwd_dq, is launched before.
//   dcapture[i] = sum of dS times d(changed score) / d(capture[i])
// The snippet is evaluated once for each read of a capture, with a slope for that read only.
// Word: add_at  adds each lane of a vector to the element at its position, in a fixed order
#pragma once

#include "attention/origin.hpp"
#include "attention/score_mod.hpp"

namespace xeflash {

// Adds the contribution of one tile to `sums`: S are the products before the score_mod changes
// them, dS the gradients of the changed scores.
template <class Config, class Tile>
XF_INLINE void add_of_captures(const BwdParams& p, const Sequence& seq, int head, Tile& dS, Tile& S,
                               int row, int key, float* sums) {
  snippet::Reads reads;
  const ScoreMod<typename Config::Learned> learned(p, seq, head, p.first_of_capture, reads);
  const typename Config::BeforeScoreMod before(p, seq, head);
  each(dS, S, row, key, [&](auto ds, auto s, auto q, auto k) __attribute__((always_inline)) {
    s = before.score(decltype(s)(s * p.scale), q, k);
    reads.chosen = 0;
    do {
      reads.count = 0;
      const auto slope = learned.slope(s, q, k);
      add_at(sums, reads.place, snippet::carried(ds, slope));
    } while (++reads.chosen < reads.count);
  });
}

template <class Config>
  requires BackwardMask<typename Config::Mask>
XF_INLINE void flash_bwd_captures(const BwdParams& p) {
  using Tiles = ScoreTiles<Config>;
  using T = typename Config::Element;
  constexpr int Br = Tiles::Br, Bc = Tiles::Bc;
  static_assert(Group::team == 1 && Group::tiles == 1);
  Tiles::allocate();

  const int worker = static_cast<int>(Group::index());
  float* sums = p.capture_sums + worker * p.captured;
  const int row_blocks = (p.max_q - 1) / Br + 1;
  const int64_t blocks = int64_t{p.batch} * p.heads_q * row_blocks;
  for (int64_t at = worker; at < blocks; at += p.capture_workers) {
    const Work work(at, 1, row_blocks, p.heads_q);
    const Sequence seq(p, work.batch);
    const RowSpan<Br> rows{work.block * Br, seq.sq};
    if (rows.is_empty()) continue;
    const typename Config::Mask mask(p, seq, work.head);
    const auto range = mask.template k_blocks<Bc>(rows.row, rows.own_last());
    const int head_k = work.head / (p.heads_q / p.heads_k);
    BlocksOfKeys<Tiles> others(seq.rows_per_key<const T>(p.k, head_k),
                               seq.rows_per_key<const T>(p.v, head_k));
    Exchange<Tiles> exchange;
    ScoreGradients<Config, Tiles, OwnOrigin<ColVec<Br>>, OwnDelta<Br>> scores(
        p, seq, work.head, mask, load_origin<Br>(p, seq, work.head, rows.row),
        load_delta<Br>(p, seq, work.head, rows.row), exchange, rows.row);
    typename Tiles::QueryTile Q;
    load(Q, seq.rows_per_query<const T>(p.q, work.head, 0).from(rows.row));
    typename Tiles::OutputGradient dO;
    load(dO, seq.rows_per_query<const T>(p.dout, work.head, 0).from(rows.row));

    for (OwnBlocks j(others, range, range); j.bring(); j.advance()) {
      const auto K = others.keys(j.first());
      const auto V = others.values(j.first());
      typename Tiles::ScoreTile S, dP;
      mma_ABt(S, Q, K);  // S = Q K^T
      auto weights = S;
      const auto P = scores.changed_probabilities(weights, j);  // P = exp(S - m) / l
      mma_ABt(dP, dO, V);                                       // dP = dO V^T
      const auto dS = scores.gradients(P, dP, j);               // dS = P (dP - Delta)
      add_of_captures<Config>(p, seq, work.head, dS.tile, S, rows.row, j.first(), sums);
    }
  }
}

// Sums the copies of all workers.
template <class Config>
XF_INLINE void add_captures(const BwdParams& p) {
  constexpr int kElements = Config::block_rows;
  const int64_t first = static_cast<int64_t>(Group::index()) * kElements;
  const int count = static_cast<int>(p.captured - first);
  ColVec<kElements> sum = 0.f;
  for (int worker = 0; worker < p.capture_workers; ++worker) {
    const float* copy = p.capture_sums + worker * p.captured + first;
    const auto more = load_values<kElements>(Rows<const float>{copy, 1, count}, 0.f);
    sum = map([](auto a, auto b) { return a + b; }, sum, more);
  }
  sum *= ColVec<kElements>(typename Config::Drop(p, Sequence(p, 0), 0).keep_scale);
  store(Rows<float>{p.dcaptures + first, 1, count}, sum);
}

}  // namespace xeflash
