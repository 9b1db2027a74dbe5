// Rows of matrices in memory. Each kind has row(i), a row that must exist; row_or_last(i); size();
// and two views: from(i), the rows from i on, and columns(c, total), the columns from c to total.
//   Rows         rows that are a stride apart
//   PackedRows   rows of several heads: all heads of a query, then all heads of the next query
//   BeamRows     keys of a head in several sequences of a cache: a table names the sequence of each
#pragma once

#include <cstdint>

#include "tile/macros.hpp"

namespace xeflash {

constexpr int kAllColumns = 0x7fffffff;

// The elements of a row are contiguous. A view from a later row keeps data and count, so that only
// the row number of messages changes.
template <class T>
struct Rows {
  T* data;
  int64_t stride;  // elements
  int count;
  int first = 0;
  int width = kAllColumns;  // columns that exist

  XF_INLINE int size() const { return count - first; }
  XF_INLINE T* row(int i) const { return data + static_cast<int64_t>(first + i) * stride; }
  XF_INLINE T* row_or_last(int i) const { return row(i < size() ? i : size() - 1); }
  XF_INLINE Rows from(int i) const { return {data, stride, count, first + i, width}; }
  XF_INLINE Rows up_to(int end) const { return {data, stride, end, first, width}; }
  XF_INLINE Rows columns(int column, int total) const {
    return {data + column, stride, count, first, total - column};
  }
};
// Rows whose columns may end anywhere: stores write single elements there.
template <class T>
struct RaggedRows : Rows<T> {
  XF_INLINE explicit RaggedRows(const Rows<T>& rows) : Rows<T>(rows) {}
};
// `count` contiguous values from `first` on, in a row of `length` values.
template <class T>
struct Line {
  T* row;
  int64_t length, first;
  int count;

  XF_INLINE Rows<T> rows() const { return {row + first, 1, count}; }
};
template <class T>
XF_INLINE Rows<T> one_row(T* row) {
  return {row, 0, 1};
}

// Row r is head r % heads of query r / heads. Divides by multiplying: exact while rows x heads <
// 2^20.
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
  int width = kAllColumns;

  XF_INLINE int size() const { return count - first; }
  XF_INLINE T* row(int i) const {
    const int r = first + i;
    return data + packed.query(r) * query_stride + packed.head(r) * head_stride;
  }
  XF_INLINE T* row_or_last(int i) const { return row(i < size() ? i : size() - 1); }
  XF_INLINE PackedRows from(int i) const {
    return {data, query_stride, head_stride, packed, count, first + i, width};
  }
  XF_INLINE PackedRows columns(int column, int total) const {
    return {data + column, query_stride, head_stride, packed, count, first, total - column};
  }
};

template <class T>
struct BeamRows {
  T* data;
  const int32_t* table;
  int64_t sequence_stride, stride;
  int count;
  int width = kAllColumns;

  XF_INLINE int size() const { return count; }
  XF_INLINE T* row(int i) const { return data + table[i] * sequence_stride + i * stride; }
  XF_INLINE T* row_or_last(int i) const { return row(i < count ? i : count - 1); }
  XF_INLINE BeamRows from(int i) const {
    return {data + i * stride, table + i, sequence_stride, stride, count - i, width};
  }
  XF_INLINE BeamRows columns(int column, int total) const {
    return {data + column, table, sequence_stride, stride, count, total - column};
  }
};

// The places where a left operand Left<T, R, C, Where> is kept:
//   InRegisters   in registers
//   TeamPart      in registers; it is the part of an operand that one thread of a team computes
//   Placed        in registers if it is small and fits there with `Beside` bytes that are in use at
//                 the same time; else in memory if `Rows` can be read in blocks, or in shared
//                 memory from byte `Begin` on. A thread of a pair that has no team also keeps it in
//                 registers if it fits there with `SumBytes` bytes of sums.
// The CPU backend has one form for all of them.
struct InRegisters {};
struct TeamPart {};
template <class Rows, int Begin, int Beside = 0, int SumBytes = 0>
struct Placed {};
constexpr int kNoRoom = 1 << 20;  // as `Beside`: keeps an operand out of registers

}  // namespace xeflash
