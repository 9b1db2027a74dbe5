// The layouts of the rows of K and V in a cache, and of the scales of quantised rows. A Config
// names one:
//   PlainCache   rows lie one after the other, as the strides of the arrays say
//   PagedCache   rows lie in pages of a pool, in any order: a table names the pages of a sequence
//   BeamCache    each key may lie in any sequence of the cache: a table names that sequence
// Each has rows(), a view of the rows of one head (see tile/rows.hpp). Views of quantised rows have
// scale(i) too, those of nibbles scale(i, unit).
#pragma once

#include <utility>

#include "attention/work.hpp"
#include "tile/quantised.hpp"

namespace xeflash {

// The size of a page is a multiple of Unit rows: Unit rows that begin at a multiple of Unit lie in
// one page.
template <class T, int Unit>
struct PagedRows {
  T* data;
  const int32_t* table;
  int64_t page_stride, stride;
  int page, lowest;  // rows per page; rows below `lowest` may have no page
  int first, count;
  int width = kAllColumns;

  XF_INLINE int size() const { return count; }
  XF_INLINE T* row(int i) const { return place(first + i < lowest ? lowest : first + i); }
  XF_INLINE T* row_or_last(int i) const { return row(i < count ? i : count - 1); }
  // Returns the address of row `at` of the sequence.
  XF_INLINE T* place(int at) const {
    const auto n = static_cast<uint32_t>(at), size = static_cast<uint32_t>(page);
    return data + table[n / size] * page_stride + n % size * stride;
  }
  XF_INLINE PagedRows from(int i) const {
    return {data, table, page_stride, stride, page, lowest, first + i, count - i, width};
  }
  XF_INLINE PagedRows columns(int column, int total) const {
    return {data + column, table, page_stride, stride, page, lowest, first, count, total - column};
  }
};

// Rows of quantised elements: the values of row i are scale(i) times its elements.
template <class R, class S>
struct ScaledRows {
  R rows;
  S scales;

  XF_INLINE int size() const { return rows.size(); }
  XF_INLINE auto* row(int i) const { return rows.row(i); }
  XF_INLINE auto* row_or_last(int i) const { return rows.row_or_last(i); }
  XF_INLINE float scale(int i) const { return *scales.row_or_last(i); }
  XF_INLINE ScaledRows from(int i) const { return {rows.from(i), scales.from(i)}; }
  XF_INLINE ScaledRows columns(int column, int all) const {
    return {rows.columns(column, all), scales};
  }
};
template <class R, class S>
ScaledRows(R, S) -> ScaledRows<R, S>;

// Rows of nibbles, whose units have scales in fp16. Columns are counted in values.
template <class R, class S>
struct NibbleRows {
  R rows;
  S scales;

  XF_INLINE int size() const { return rows.size(); }
  XF_INLINE auto* row(int i) const { return rows.row(i); }
  XF_INLINE auto* row_or_last(int i) const { return rows.row_or_last(i); }
  XF_INLINE float scale(int i, int unit) const {
    return static_cast<float>(scales.row_or_last(i)[unit]);
  }
  XF_INLINE NibbleRows from(int i) const { return {rows.from(i), scales.from(i)}; }
  XF_INLINE NibbleRows columns(int column, int all) const {
    return {rows.columns(column / 2, all / 2),
            scales.columns(column / kUnitColumns, all / kUnitColumns)};
  }
};
template <class R, class S>
NibbleRows(R, S) -> NibbleRows<R, S>;

// Returns N rows from `first` on, where first is a multiple of N; plain Rows if a page holds all of
// them.
template <int N, class R>
XF_INLINE R block_of(const R& rows, int first) {
  return rows.from(first);
}
template <int N, class T, int Unit>
XF_INLINE auto block_of(const PagedRows<T, Unit>& rows, int first) {
  if constexpr (Unit % N == 0) {
    const int left = rows.count - first, at = left > 0 ? first : rows.count - 1;  // else not read
    const int count = left < 1 ? 1 : left < N ? left : N;
    return Rows<T>{rows.place(rows.first + at), rows.stride, count}.columns(0, rows.width);
  } else {
    return rows.from(first);
  }
}
template <int N, class R, class S>
XF_INLINE auto block_of(const ScaledRows<R, S>& rows, int first) {
  return ScaledRows{block_of<N>(rows.rows, first), block_of<N>(rows.scales, first)};
}
template <int N, class R, class S>
XF_INLINE auto block_of(const NibbleRows<R, S>& rows, int first) {
  return NibbleRows{block_of<N>(rows.rows, first), block_of<N>(rows.scales, first)};
}

// rows() returns the keys or values of a head up to `to`, counted from the sequence's first; rows
// before `from` are not read.
struct PlainCache {
  template <class T>
  static XF_INLINE Rows<T> rows(const CacheArg&, const Sequence& seq, const TensorArg& t, int head,
                                int, int to) {
    return seq.rows_per_key<T>(t, head).up_to(to);
  }
};

template <int Unit>
struct PagedCache {
  template <class T>
  static XF_INLINE PagedRows<T, Unit> rows(const CacheArg& cache, const Sequence& seq,
                                           const TensorArg& t, int head, int from, int to) {
    return {static_cast<T*>(t.data) + head * t.head,
            cache.table + seq.batch * cache.table_row,
            t.batch,
            t.row,
            cache.page,
            from,
            0,
            to};
  }
};

struct BeamCache {
  template <class T>
  static XF_INLINE BeamRows<T> rows(const CacheArg& cache, const Sequence& seq, const TensorArg& t,
                                    int head, int, int to) {
    return {static_cast<T*>(t.data) + head * t.head + seq.k0 * t.row,
            cache.table + seq.batch * cache.table_row + seq.k0, t.batch, t.row, to};
  }
};

// Returns the scales of a sequence's rows.
XF_INLINE TensorArg scales_of(const Sequence& seq, const ScaleArg& scales) {
  return {static_cast<float*>(scales.data) + seq.batch * scales.sequence, scales.batch, scales.row,
          scales.head};
}

template <class Config, class E>
XF_INLINE auto cache_rows(const FwdParams& p, const Sequence& seq, const TensorArg& t,
                          const ScaleArg& scales, int head, int from, int to) {
  using Cache = typename Config::Cache;
  const auto rows = Cache::template rows<const E>(p.cache, seq, t, head, from, to);
  if constexpr (kNibbles<E>) {
    const auto factors = Cache::template rows<const f16>(p.cache, seq, scales, head, from, to);
    return NibbleRows{rows, factors};
  } else if constexpr (Config::cache_scales) {
    const auto factors =
        Cache::template rows<const float>(p.cache, seq, scales_of(seq, scales), head, from, to);
    return ScaledRows{rows, factors};
  } else {
    return rows;
  }
}
template <class Config>
XF_INLINE auto key_rows(const FwdParams& p, const Sequence& seq, int head, int from, int to) {
  return cache_rows<Config, typename Config::CacheElement>(p, seq, p.k, p.cache.k_scale, head, from,
                                                           to);
}
template <class Config>
XF_INLINE auto value_rows(const FwdParams& p, const Sequence& seq, int head, int from, int to) {
  return cache_rows<Config, typename Config::ValueElement>(p, seq, p.v, p.cache.v_scale, head, from,
                                                           to);
}

// Returns whether a thread brings its next block of K and V, of this many columns, into the caches
// before it uses it. Where threads are many, they would evict each other's blocks. Heads that are
// shared out over threads leave no register for a choice.
template <class Config, int KeyColumns, int ValueColumns>
XF_INLINE bool brings_ahead(const FwdParams& p) {
  using E = typename Config::ValueElement;
  constexpr int kBytes = Config::block_columns *
                         (KeyColumns * static_cast<int>(sizeof(typename Config::CacheElement)) +
                          ValueColumns / kPerElement<E> * static_cast<int>(sizeof(E)));
  if (Group::turns == 1 && kBytes <= Group::ahead_bytes) return true;
  return Group::team == 1 && p.looks_ahead;
}

// The types of the rows of a cache, and of a block of them.
template <class Config>
using KeyRows =
    decltype(key_rows<Config>(std::declval<FwdParams>(), std::declval<Sequence>(), 0, 0, 0));
template <class Config>
using ValueRows =
    decltype(value_rows<Config>(std::declval<FwdParams>(), std::declval<Sequence>(), 0, 0, 0));
template <class Config, class R>
using CacheBlock = decltype(block_of<Config::block_columns>(std::declval<R>(), 0));

}  // namespace xeflash
