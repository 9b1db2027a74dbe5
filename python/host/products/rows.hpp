// Reads the arrays of products: an array of any dimensions as a matrix of rows, and a bias.
#pragma once

#include "host/arrays/array.hpp"
#include "host/arrays/checks.hpp"

namespace xeflash {

// The largest stride with which a GPU can reach 32 rows of a tile by 32 bits.
constexpr int64_t kFar = int64_t{1} << 27;  // bytes
inline bool are_near(int64_t stride, const Array& x) {
  return stride >= 0 && stride * size_of(x.dtype) < kFar;
}
// Returns the stride of the last dimension but one; 0 if it has one element.
inline int64_t row_stride(const Array& x) {
  return x.ndim > 1 && x.shape[x.ndim - 2] > 1 ? x.strides[x.ndim - 2] : 0;
}

// Returns x as products on GPUs read it: with zeros after its own inputs up to this many, and with
// rows that are near each other.
inline Array with_inputs(Array x, int64_t inputs, const char* name, const Checker& check) {
  if (inputs == x.shape[x.ndim - 1] && are_near(row_stride(x), x)) return x;
  XF_REQUIRE(check, are_near(inputs, x), name, "must have rows of less than 2^27 bytes on a GPU",
             x.describe_shape(), x);
  return copy_by("padded", std::move(x), check, name, py::make_tuple(inputs));
}

inline int64_t rows_of(const Array& x) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < x.ndim; ++i) rows *= x.shape[i];
  return rows;
}

// Returns x as a matrix whose rows lie one stride apart.
inline Array as_rows(Array x) {
  const int64_t rows = rows_of(x);
  int64_t stride = x.shape[x.ndim - 1];
  for (int i = x.ndim - 2; i >= 0; --i) {
    if (x.shape[i] > 1) {
      stride = x.strides[i];
      break;
    }
  }
  x.shape = {rows, x.shape[x.ndim - 1]};
  x.strides = {stride, 1};
  x.ndim = 2;
  return x;
}

// Reads a bias, which has a number for each output. None becomes an array without data.
inline Array read_bias(const py::object& object, const char* name, int64_t outputs, const Array& x,
                       const char* x_name, const Checker& check) {
  if (object.is_none()) return {};
  Array bias = read_rows(object, check, name);
  check.require_dtype_of(bias, name, x, x_name);
  check.require_shape(bias, name, {outputs});
  check.require_same_place(bias, name, x, x_name);
  return bias;
}

// Returns whether all rows of x lie one stride apart.
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
