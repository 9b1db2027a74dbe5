// The rows of an array of any dimensions, as a matrix.
#pragma once

#include "array.hpp"

namespace xeflash {

// x as a matrix: rows lie a stride apart.
inline Array as_rows(const Array& x) {
  Array m = x;
  const int64_t inputs = x.shape[x.ndim - 1];
  int64_t rows = 1;
  for (int i = 0; i + 1 < x.ndim; ++i) rows *= x.shape[i];
  m.ndim = 2;
  m.shape = {rows, inputs};
  m.strides = {inputs, 1};
  for (int i = x.ndim - 2; i >= 0; --i) {
    if (x.shape[i] > 1) {
      m.strides[0] = x.strides[i];
      break;
    }
  }
  return m;
}

// Whether all rows of x lie one stride apart.
inline bool has_even_rows(const Array& x) {
  if (x.is_empty()) return true;
  int64_t next = -1;  // the stride that the next dimension must have
  for (int i = x.ndim - 2; i >= 0; --i) {
    if (x.shape[i] == 1) continue;
    if (next >= 0 && x.strides[i] != next) return false;
    if (x.strides[i] < 0) return false;
    next = x.strides[i] * x.shape[i];
  }
  return true;
}

}  // namespace xeflash
