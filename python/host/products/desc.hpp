// Describes kernels of products.
#pragma once

#include <algorithm>
#include <bit>

#include "host/arrays/access.hpp"
#include "host/device/kernels.hpp"
#include "host/device/sizes.hpp"

namespace xeflash {

// Everything that changes the code of a product of few rows; ProductDesc in tune/desc.py explains
// it.
struct ProductDesc {
  Algorithm algorithm = Algorithm::linear;
  DType dtype = DType::kOther;
  uint8_t rows = 0, width = 0;
  DType weight = DType::kOther, scale = DType::kOther;  // kOther: dtype; none
  uint8_t group = 0;
  bool wide = false;
  Access access = Access::kNone;

  bool operator==(const ProductDesc&) const = default;
};

XF_FIELDS(ProductDesc, algorithm, dtype, rows, width, weight, scale, group, wide, access);

// Everything that changes the code of matmul_softmax and of kernels of a head; SoftmaxDesc in
// tune/desc.py explains it.
struct SoftmaxDesc {
  Algorithm algorithm = Algorithm::matmul_softmax;
  DType dtype = DType::kOther;
  uint8_t rows = 0, columns = 0;
  uint16_t inputs = 0;
  bool more_inputs = false;
  DType bias = DType::kOther;  // kOther: none
  Access access = Access::kNone;

  bool operator==(const SoftmaxDesc&) const = default;
};

XF_FIELDS(SoftmaxDesc, algorithm, dtype, rows, columns, inputs, more_inputs, bias, access);

constexpr int64_t kMostExtent = (int64_t{1} << 31) - 1024;  // with the rest of a block, 32 bits

// Returns the number of rows in descriptions of softmax and heads: a power of 2, up to the most
// that tables have.
inline uint8_t rows_for(int64_t rows, const ProductSchedule& sizes) {
  const uint64_t power = std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(rows, 1)));
  return static_cast<uint8_t>(std::min(power, static_cast<uint64_t>(sizes.most_rows)));
}

// Returns the exponent of the least power of 2 that is at least n.
inline uint8_t power_for(int64_t n) {
  return static_cast<uint8_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(n, 1) - 1)));
}

}  // namespace xeflash
