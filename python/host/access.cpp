#include "access.hpp"

#include <algorithm>
#include <cmath>

namespace xeflash {
namespace {

struct Strides {  // bytes
  int64_t batch, row, head;
};

Strides strides_of(const Array& a, const Axes& axes) {
  const int64_t bytes = size_of(a.dtype);
  // The stride of a dimension of one element is never used, and may be anything.
  const auto of = [&](int axis) {
    return axis < 0 || a.shape[axis] <= 1 ? 0 : a.strides[axis] * bytes;
  };
  return {of(axes.batch), of(axes.row), of(axes.head)};
}

bool all_multiples(const Array& a, const Strides& s, int64_t unit) {
  return reinterpret_cast<uintptr_t>(a.data) % unit == 0 && s.batch % unit == 0 &&
         s.row % unit == 0 && s.head % unit == 0;
}

constexpr int64_t kMost = 1 << 24;  // bytes of a row, and rows

// The rules of 2D block messages (kernels/xe/message.hpp). Every head has to begin at a multiple of
// 64 bytes, or so many rows after one, or have room in its rows for what is past it.
bool fits_block2d(const Array& a, const Axes& axes, int64_t columns) {
  const Strides s = strides_of(a, axes);
  const int rows = axes.row;
  const int64_t bytes = size_of(a.dtype), width = columns * bytes;
  const int64_t pitch = a.strides[rows] * bytes;  // also that of a single row is told
  // The columns beside it would be written, or multiplied: a step of a product is 16 of 16 bits.
  if (width < 64 && (columns != 16 || bytes == 1)) return false;
  if (pitch % 16 != 0) return false;
  if (pitch < std::max<int64_t>(width, 64) || pitch > kMost || a.shape[rows] > kMost - 3) {
    return false;
  }
  const int64_t unit = pitch % 64 == 0 ? 64 : pitch % 32 == 0 ? 32 : 16;
  return all_multiples(a, s, unit) || pitch >= std::max<int64_t>(width, 64) + 60;
}

}  // namespace

const char* name_of(Access access) {
  switch (access) {
    case Access::kBlock2d:
      return "block2d";
    case Access::kDwords:
      return "dwords";
    case Access::kElements:
      return "elements";
    default:
      return "";
  }
}

bool is_row_of_block2d(int64_t bytes) { return bytes >= 64 && bytes <= kMost - 64; }

Access access_of_rows(std::initializer_list<std::pair<const Array*, Layout>> arrays,
                      const std::string& arch) {
  if (arch.rfind("cpu-", 0) == 0 || arch.empty()) return Access::kNone;
  for (const auto& [a, layout] : arrays) {
    if (a->data && !all_multiples(*a, strides_of(*a, axes_of(layout)), 4)) return Access::kElements;
  }
  return Access::kDwords;
}

Access access_of_matrices(std::initializer_list<const Array*> matrices, const std::string& arch) {
  if (arch.rfind("cpu-", 0) == 0 || arch.empty()) return Access::kNone;
  const Axes axes{-1, 0, -1};
  Access access = arch == "dg2" ? Access::kDwords : Access::kBlock2d;
  for (const Array* a : matrices) {
    const int64_t row = a->shape[1] * size_of(a->dtype);
    if (!all_multiples(*a, strides_of(*a, axes), 4) || row % 4 != 0) return Access::kElements;
    if (row < 64 || !fits_block2d(*a, axes, a->shape[1])) access = Access::kDwords;
  }
  return access;
}

Access access_for(const Problem& p, Others like_q, Others like_k, Layout layout,
                  QueryRows query_rows, const std::string& arch) {
  const Layout of_keys = p.k_layout(layout);
  Access rows = access_of_rows({{&p.q, layout}, {&p.k, of_keys}, {&p.v, of_keys}}, arch);
  for (const auto& [a, columns] : like_q)
    rows = std::max(rows, access_of_rows({{a, layout}}, arch));
  for (const auto& [a, columns] : like_k) {
    rows = std::max(rows, access_of_rows({{a, of_keys}}, arch));
  }
  if (rows != Access::kDwords || p.cache.kind == CacheKind::kBeam) return rows;
  const Axes axes = axes_of(layout), key_axes = axes_of(of_keys);
  const auto fit = [](Others arrays, const Axes& axes) {
    return std::all_of(arrays.begin(), arrays.end(), [&](const auto& other) {
      return !other.first->data || fits_block2d(*other.first, axes, other.second);
    });
  };
  const auto own_rows_fit = [&] {
    switch (query_rows) {
      case QueryRows::kOfHead:
        return fits_block2d(p.q, axes, p.d) && fit(like_q, axes);
      case QueryRows::kOfQuery:  // only read; a single one by the vector unit
        return p.heads_q == p.heads_k || fits_block2d(p.q, {axes.batch, axes.head, axes.row}, p.d);
      default:
        return true;
    }
  };
  if (arch != "dg2" && own_rows_fit() && fits_block2d(p.k, key_axes, p.d) &&
      fits_block2d(p.v, key_axes, p.dv) && fit(like_k, key_axes)) {
    return Access::kBlock2d;
  }
  return Access::kDwords;
}

void refuse_far_rows(const Problem& p,
                     std::initializer_list<std::pair<const Array*, const char*>> like_q,
                     Layout layout, QueryRows query_rows, const Checker& check) {
  constexpr int kRowsOfTile = 32;
  constexpr int64_t kLimit = (int64_t{1} << 32) / kRowsOfTile;
  const auto require_near = [&](const Array& a, const char* name, Layout of, bool heads) {
    const Strides s = strides_of(a, axes_of(of));
    const int64_t bytes = heads ? s.head : s.row;
    XF_REQUIRE(check, bytes >= 0 && bytes < kLimit, name,
               std::string(heads ? "must have heads" : "must have rows") +
                   " 0 to 2^27 - 1 bytes apart on a GPU",
               std::to_string(bytes), a);
  };
  require_near(p.k, p.k_name(), p.k_layout(layout), false);
  require_near(p.v, p.v_name(), p.k_layout(layout), false);
  if (query_rows == QueryRows::kApart) return;
  const bool heads = query_rows == QueryRows::kOfQuery;
  require_near(p.q, "q", layout, heads);
  for (const auto& [a, name] : like_q) require_near(*a, name, layout, heads);
}

void check_mask_strides(const Problem& p, const Checker& check) {
  constexpr int64_t kMost = int64_t{1} << 26;
  if (!p.bias.data || p.bias.ndim == 0 || p.bias.shape[p.bias.ndim - 1] < 2) return;
  const int64_t stride = std::abs(p.bias.strides[p.bias.ndim - 1]);
  if (stride > kMost)
    check.refuse("attn_mask",
                 "must have a last stride of at most 2^26 on a GPU, got " + std::to_string(stride));
}

}  // namespace xeflash
