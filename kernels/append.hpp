// Appends keys and values to a cache, and rotates keys and queries by their positions (RoPE, Su et
// al., 2021): (a, b) -> (a cos - b sin, a sin + b cos) for the pairs of a row's first dimensions.
// One work-item per token of a sequence. Or writes them to the rows of pages that slots name: a
// slot is a page's number times its rows, plus the row. One work-item per head of a token.
// Word: rotate         rotates pairs of a row's columns
// Word: abs_max        returns the largest magnitude of a row
// Word: store_nibbles  writes a row in 4 bits, and the scales of its units
#pragma once

#include "attention/cache.hpp"

namespace xeflash {

// Returns the row of token t in a (batch, tokens, heads, dim) array.
template <class T>
XF_INLINE T* token_row(const TensorArg& a, int batch, int t, int head) {
  return static_cast<T*>(a.data) + batch * a.batch + t * a.row + head * a.head;
}

// Writes a row of new keys or values to `row` of a cache, where its scale is `scale`, if it has
// one. A scale that is found makes the row's largest magnitude the type's largest number.
template <class Config, class Row>
XF_INLINE void write_row(typename Config::CacheElement* row, float* scale, bool finds_scale,
                         float inverse_scale, const Row& x) {
  if constexpr (Config::cache_scales) {
    if (finds_scale) {
      const float largest = abs_max(x),
                  found = largest > 0.f ? largest / kLargest<typename Config::CacheElement> : 1.f;
      *scale = found;
      inverse_scale = 1.f / found;
    } else {
      const float near = 1.f / *scale;  // GPUs estimate it: a power of two has to be exact
      inverse_scale = near + near * (1.f - *scale * near);
    }
  }
  store_row(one_row(row), x, 0, inverse_scale);
}

// Returns where row `at` of a sequence lies in an array of the cache.
template <class Config, class T>
XF_INLINE T* place_of(const AppendParams& p, const Sequence& seq, const TensorArg& array, int head,
                      int at) {
  return Config::Cache::template rows<T>(p.attention.cache, seq, array, head, 0, at + 1).row(at);
}

// Writes row `at` of a sequence's keys, or of its values unless they are in 4 bits, into the cache.
template <class Config, class Row>
XF_INLINE void append_row(const AppendParams& p, const Sequence& seq, const TensorArg& array,
                          const ScaleArg& scales, float inverse_scale, int head, int at,
                          const Row& x) {
  float* scale = nullptr;
  if constexpr (Config::cache_scales)
    scale = place_of<Config, float>(p, seq, scales_of(seq, scales), head, at);
  write_row<Config>(place_of<Config, typename Config::CacheElement>(p, seq, array, head, at), scale,
                    p.finds_scales, inverse_scale, x);
}
template <class Config, class Row>
XF_INLINE void append_value(const AppendParams& p, const Sequence& seq, int head, int at,
                            const Row& x) {
  const TensorArg& array = p.attention.v;
  const ScaleArg& scales = p.attention.cache.v_scale;
  if constexpr (kNibbles<typename Config::ValueElement>)
    store_nibbles(place_of<Config, nibbles>(p, seq, array, head, at),
                  place_of<Config, f16>(p, seq, scales, head, at), x);
  else
    append_row<Config>(p, seq, array, scales, p.v_inverse, head, at, x);
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
    const int64_t position =
        p.positions ? p.positions[batch * p.position_batch + token] : seq.k0 + before + token;
    if (p.rotary_dim > 0 && position >= 0 && position < p.rotary_rows) {
      rotate(x, row, token_row<const T>(p.cos, 0, position, 0),
             token_row<const T>(p.sin, 0, position, 0), p.rotary_dim, p.interleaved);
    }
  };

  for (int head = 0; head < p.attention.heads_k && t < cache.added; ++head) {
    RowTile<1, d> K;
    load_rotated(K, token_row<const T>(p.k, batch, t, head), t);
    append_row<Config>(p, seq, p.attention.k, cache.k_scale, p.k_inverse, head, before + t, K);
    RowTile<1, dv> V;
    load(V, one_row(token_row<const T>(p.v, batch, t, head)));
    append_value<Config>(p, seq, head, before + t, V);
  }
  for (int head = 0; head < p.attention.heads_q && t < p.rotated_q; ++head) {
    RowTile<1, d> Q;
    load_rotated(Q, token_row<const T>(p.q, batch, t, head), p.q_in_order ? t : 0);
    store_row(one_row(token_row<T>(p.attention.q, batch, t, head)), Q, 0, 1.f);
  }
}

template <class Config>
XF_INLINE void write_to_cache(const WriteParams& p) {
  using T = typename Config::Element;
  const Group::Index group = Group::index();
  const int token = static_cast<int>(group / p.heads), head = static_cast<int>(group % p.heads);
  const int64_t slot = p.wide_slots ? static_cast<const int64_t*>(p.slots)[token]
                                    : static_cast<const int32_t*>(p.slots)[token];
  if (slot < 0 || slot >= p.capacity) return;
  const int page = static_cast<int>(slot) / p.page, at = static_cast<int>(slot) % p.page;
  const auto write = [&](const auto& x, const TensorArg& to, const ScaleArg& scales,
                         float inverse_scale) {
    float* scale = nullptr;
    if constexpr (Config::cache_scales)
      scale = token_row<float>(scales, page, at, head) + token * scales.sequence;
    write_row<Config>(token_row<typename Config::CacheElement>(to, page, at, head), scale,
                      p.finds_scales, inverse_scale, x);
  };
  RowTile<1, Config::head_dim> K;
  load(K, one_row(token_row<const T>(p.k, 0, token, head)));
  write(K, p.k_cache, p.k_scale, p.k_inverse);
  RowTile<1, Config::head_dim_v> V;
  load(V, one_row(token_row<const T>(p.v, 0, token, head)));
  if constexpr (kNibbles<typename Config::ValueElement>)
    store_nibbles(token_row<nibbles>(p.v_cache, page, at, head),
                  token_row<f16>(p.v_scale, page, at, head), V);
  else
    write(V, p.v_cache, p.v_scale, p.v_inverse);
}

}  // namespace xeflash
