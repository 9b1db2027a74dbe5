#include "host/arrays/access.hpp"

#include <algorithm>

namespace xeflash {
namespace {

bool all_multiples(const Array& a, const Strides& s, int64_t unit) {
  return reinterpret_cast<uintptr_t>(a.data) % unit == 0 && s.batch % unit == 0 &&
         s.row % unit == 0 && s.head % unit == 0;
}

bool is_gpu(const std::string& arch) { return !arch.empty() && !arch.starts_with("cpu-"); }

constexpr int64_t kMostRow = 1 << 24;  // bytes of a row, and rows

}  // namespace

const char* name_of(Access access) {
  constexpr const char* kNames[] = {"", "block2d", "dwords", "elements"};
  return kNames[static_cast<uint8_t>(access)];
}

Strides strides_of(const Array& a, const Axes& axes) {
  const int64_t bytes = size_of(a.dtype);
  // The stride of a dimension of one element is never used, so it may be anything.
  const auto of = [&](int axis) {
    return axis < 0 || a.shape[axis] <= 1 ? 0 : a.strides[axis] * bytes;
  };
  return {of(axes.batch), of(axes.row), of(axes.head)};
}

// The rules of 2D block messages (kernels/xe/message.hpp). Every head has to begin at a multiple of
// 64 bytes, or so many rows after one, or have room in its rows for what is past it.
bool fits_block2d(const Array& a, const Axes& axes, int64_t columns) {
  const Strides s = strides_of(a, axes);
  const int rows = axes.row;
  const int64_t bytes = size_of(a.dtype), width = columns * bytes;
  const int64_t pitch = a.strides[rows] * bytes;  // also that of a single row is told
  // The columns beside it would be written, or multiplied: a step of a product is 16 of 16 bits. A
  // row of nibbles is read as whole units, of 32 bytes.
  if (width < 64 && (columns != 16 || bytes == 1) && a.dtype != DType::kU8) return false;
  if (pitch % 16 != 0) return false;
  if (pitch < std::max<int64_t>(width, 64) || pitch > kMostRow || a.shape[rows] > kMostRow - 3) {
    return false;
  }
  const int64_t unit = pitch % 64 == 0 ? 64 : pitch % 32 == 0 ? 32 : 16;
  return all_multiples(a, s, unit) || pitch >= std::max<int64_t>(width, 64) + 60;
}

bool is_row_of_block2d(int64_t bytes) { return bytes >= 64 && bytes <= kMostRow - 64; }

Access access_of_rows(const Array& a, const Axes& axes, const std::string& arch) {
  if (!is_gpu(arch)) return Access::kNone;
  if (a.data && !all_multiples(a, strides_of(a, axes), 4)) return Access::kElements;
  return Access::kDwords;
}

Access access_of_matrices(std::initializer_list<const Array*> matrices, const std::string& arch) {
  if (!is_gpu(arch)) return Access::kNone;
  const Axes axes{-1, 0, -1};
  Access access = arch == "dg2" ? Access::kDwords : Access::kBlock2d;
  for (const Array* a : matrices) {
    const int64_t row = a->shape[1] * size_of(a->dtype);
    if (!all_multiples(*a, strides_of(*a, axes), 4) || row % 4 != 0) return Access::kElements;
    if (row < 64 || !fits_block2d(*a, axes, a->shape[1])) access = Access::kDwords;
  }
  return access;
}

void check_groups(uint64_t groups, Access access) {
  if (access == Access::kNone || groups <= UINT32_MAX) return;
  throw py::value_error(
      "xeflash: batch x heads x blocks of rows must be below 2^32 on a GPU, got " +
      std::to_string(groups));
}

}  // namespace xeflash
