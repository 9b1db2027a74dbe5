#include "host/attention/access.hpp"

#include <algorithm>
#include <cmath>

namespace xeflash {

Access access_of_rows(std::initializer_list<std::pair<const Array*, Layout>> arrays,
                      const std::string& arch) {
  Access access = Access::kNone;
  for (const auto& [a, layout] : arrays)
    access = std::max(access, access_of_rows(*a, axes_of(layout), arch));
  return access;
}

Access access_for(const Problem& p, Others like_q, Others like_k, Layout layout,
                  QueryRows query_rows, const std::string& arch) {
  const Layout key_layout = p.k_layout(layout);
  Access rows = access_of_rows({{&p.q, layout}, {&p.k, key_layout}, {&p.v, key_layout}}, arch);
  for (const auto& [a, columns] : like_q)
    rows = std::max(rows, access_of_rows({{a, layout}}, arch));
  for (const auto& [a, columns] : like_k) {
    rows = std::max(rows, access_of_rows({{a, key_layout}}, arch));
  }
  if (rows != Access::kDwords || p.cache.kind == CacheKind::kBeam) return rows;
  const Axes axes = axes_of(layout), key_axes = axes_of(key_layout);
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
      fits_block2d(p.v, key_axes, p.columns_of_v()) && fit(like_k, key_axes)) {
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
