// The k largest logits of each row and their tokens, without the logits in memory: each row has a
// list per part of the vocabulary, which takes a logit that exceeds the list's k-th. Equal logits
// stay in the order of their tokens.
//   linear_top_k   fills the list of each row and part
//   merge_top_k    merges the lists of a row
#pragma once

#include "products/logits.hpp"
#include "products/top_list.hpp"

namespace xeflash {

template <class Config>
XF_INLINE void linear_top_k(const TopKParams& p) {
  constexpr int Br = Config::rows, Bn = Config::columns;
  each_block<Config>(p, [&](const LogitRows<Config>& rows, int worker) {
    const KeptInputs<typename Config::Element, Br, Config::inputs> x(p.kept, worker, rows.x());
    TopLists<Br> lists(p, rows.row, rows.part);
    for (int j = rows.begin(); j < rows.end(); j += Bn) {
      Tile<Br, Bn> S;
      rows.logits(S, x, j);
      each(S, 0, j, [&](auto s, auto, auto k) {  // -inf ranks last, but above missing columns
        return select(k < p.columns, Floats(max(Floats(s), Floats(kNoScore))), Floats(-kInf));
      });
      lists.add(S, j);
    }
  });
}

template <class Config>
XF_INLINE void merge_top_k(const TopKParams& p) {
  const int row = static_cast<int>(Group::index());
  TopList all(p, row, 0);
  all.find_last();
  for (int part = 1; part < p.parts; ++part) {
    const TopList other(p, row, part);
    for (int i = 0; i < p.k && other.value(i) > all.last; ++i) {
      all.insert(other.value(i), other.token(i));
    }
  }
  all.store(p, row);
}

}  // namespace xeflash
