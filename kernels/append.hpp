// Appends keys and values to a cache, and rotates keys and queries by their positions (RoPE, Su et
// al., 2021): (a, b) -> (a cos - b sin, a sin + b cos) for the pairs of a row's first dimensions.
// One work-item per token of a sequence.
// Word: rotate   rotates pairs of a row's columns
// Word: abs_max  returns the largest magnitude of a row
#pragma once

#include "attention/cache.hpp"

namespace xeflash {

// Returns the row of token t in a (batch, tokens, heads, dim) array.
template <class T>
XF_INLINE T* token_row(const TensorArg& a, int batch, int t, int head) {
  return static_cast<T*>(a.data) + batch * a.batch + t * a.row + head * a.head;
}

// Writes row `at` of a sequence's keys or values into the cache. Where the cache has a scale per
// row, the scale is chosen so that the row's largest magnitude becomes the type's largest number.
template <class Config, class Row>
XF_INLINE void append_row(const CacheArg& cache, const Sequence& seq, const TensorArg& array,
                          const TensorArg& scales, float inverse_scale, int head, int at,
                          const Row& x) {
  using Cache = typename Config::Cache;
  using E = typename Config::CacheElement;
  if constexpr (Config::cache_scales) {
    const float largest = abs_max(x), scale = largest > 0.f ? largest / kLargest<E> : 1.f;
    *Cache::template rows<float>(cache, seq, scales, head, 0, at + 1).row(at) = scale;
    inverse_scale = 1.f / scale;
  }
  E* row = Cache::template rows<E>(cache, seq, array, head, 0, at + 1).row(at);
  store_row(one_row(row), x, 0, inverse_scale);
}

template <class Config>
XF_INLINE void append(const AppendParams& p) {
  constexpr int d = Config::head_dim, dv = Config::head_dim_v;
  using T = typename Config::Element;
  const CacheArg& cache = p.attention.cache;
  const Group::Index group = Group::index();
  const int batch = static_cast<int>(group / p.tokens), t = static_cast<int>(group % p.tokens);
  const Sequence seq(p.attention, batch);
  const int before = seq.sk - cache.added;  // keys in the cache before this call
  // Lengths that lie on the device may leave no room in the cache: then nothing is written.
  if (before < 0 || (cache.lengths && cache.lengths[batch] != seq.k0 + before)) return;
  const auto load_rotated = [&](RowTile<1, d>& x, const T* row, int token) {
    load(x, one_row(row));
    const int64_t position = seq.k0 + before + token;
    if (p.rotary_dim > 0 && position < p.rotary_rows) {
      rotate(x, row, token_row<const T>(p.cos, 0, position, 0),
             token_row<const T>(p.sin, 0, position, 0), p.rotary_dim, p.interleaved);
    }
  };

  for (int head = 0; head < p.attention.heads_k && t < cache.added; ++head) {
    RowTile<1, d> K;
    load_rotated(K, token_row<const T>(p.k, batch, t, head), t);
    append_row<Config>(cache, seq, p.attention.k, cache.k_scale, p.k_inverse, head, before + t, K);
    RowTile<1, dv> V;
    load(V, one_row(token_row<const T>(p.v, batch, t, head)));
    append_row<Config>(cache, seq, p.attention.v, cache.v_scale, p.v_inverse, head, before + t, V);
  }
  for (int head = 0; head < p.attention.heads_q && t < p.rotated_q; ++head) {
    RowTile<1, d> Q;
    load_rotated(Q, token_row<const T>(p.q, batch, t, head), p.q_in_order ? t : 0);
    store_row(one_row(token_row<T>(p.attention.q, batch, t, head)), Q, 0, 1.f);
  }
}

}  // namespace xeflash
