// Rows of a head's keys that lie in several sequences of a cache: a table names the one of each.
#pragma once

#include <cstdint>

#include "tile/macros.hpp"

namespace xeflash {

template <class T>
struct BeamRows {
  T* data;
  const int32_t* table;
  int64_t sequence_stride, stride;
  int count;
  int width = 0x7fffffff;  // columns that are there

  XF_INLINE int size() const { return count; }
  XF_INLINE T* row(int i) const { return existing_row(i < count ? i : count - 1); }
  XF_INLINE T* existing_row(int i) const { return data + table[i] * sequence_stride + i * stride; }
  XF_INLINE BeamRows from(int i) const {
    return {data + i * stride, table + i, sequence_stride, stride, count - i, width};
  }
  XF_INLINE BeamRows columns(int column, int total) const {
    return {data + column, table, sequence_stride, stride, count, total - column};
  }
};

}  // namespace xeflash
