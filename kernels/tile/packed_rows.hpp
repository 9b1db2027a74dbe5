// Rows of a matrix that are those of several heads, all heads of a query one after the other: row r
// is head r % heads of query r / heads.
#pragma once

#include <cstdint>

#include "tile/macros.hpp"

namespace xeflash {

// Divides by multiplying: exact while rows x heads < 2^20.
struct PackedRow {
  int heads, inverse;

  XF_INLINE explicit PackedRow(int heads)
      : heads(heads), inverse(((1 << 20) + heads - 1) / heads) {}
  template <class I>
  XF_INLINE I query(I row) const {
    return (row * inverse) >> 20;
  }
  template <class I>
  XF_INLINE I head(I row) const {
    return row - query(row) * heads;
  }
};

template <class T>
struct PackedRows {
  T* data;
  int64_t query_stride, head_stride;
  PackedRow packed;
  int count;
  int first = 0;
  int width = 0x7fffffff;  // columns that are there

  XF_INLINE int size() const { return count - first; }
  // Rows past the end repeat the last one.
  XF_INLINE T* row(int i) const {
    const int r = first + i < count ? first + i : count - 1;
    return data + packed.query(r) * query_stride + packed.head(r) * head_stride;
  }
  XF_INLINE PackedRows from(int row) const {
    return {data, query_stride, head_stride, packed, count, first + row, width};
  }
  XF_INLINE PackedRows columns(int column, int total) const {
    return {data + column, query_stride, head_stride, packed, count, first, total - column};
  }
};

}  // namespace xeflash
