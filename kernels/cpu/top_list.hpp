// Lists of the largest logits on the CPU.
#pragma once

#include "cpu/tile.hpp"

namespace xeflash::cpu {

struct TopList {
  float* values;
  int32_t* tokens;
  int k;
  float last = -kInf;

  XF_INLINE TopList(const TopKParams& p, int row, int part) : k(p.k) {
    const int64_t at = (int64_t{row} * p.parts + part) * p.length;
    values = p.values + at;
    tokens = p.tokens + at;
  }
  XF_INLINE void clear() {
    for (int i = 0; i < k; ++i) values[i] = -kInf;
  }
  XF_INLINE void find_last() { last = values[k - 1]; }
  XF_INLINE float value(int i) const { return values[i]; }
  XF_INLINE int token(int i) const { return tokens[i]; }
  // Inserts a value above the last one, behind values that are as large; smaller ones move down by
  // one.
  XF_INLINE void insert(float value, int token) {
    int i = k - 1;
    for (; i > 0 && values[i - 1] < value; --i) {
      values[i] = values[i - 1];
      tokens[i] = tokens[i - 1];
    }
    values[i] = value;
    tokens[i] = token;
    find_last();
  }
  XF_INLINE void store(const TopKParams& p, int row) const {
    auto* found = reinterpret_cast<int64_t*>(p.largest_tokens);
    for (int i = 0; i < k; ++i) {
      p.largest[int64_t{row} * k + i] = values[i] == kNoScore ? -kInf : values[i];
      found[int64_t{row} * k + i] = tokens[i];
    }
  }
};

template <int R>
struct TopLists {
  const TopKParams& p;
  int row, part, rows;
  alignas(64) float last[R];

  XF_INLINE TopLists(const TopKParams& p, int row, int part)
      : p(p), row(row), part(part), rows(p.rows - row < R ? p.rows - row : R) {
    XF_NO_UNROLL for (int r = 0; r < R; ++r) {
      last[r] = -kInf;
      if (r < rows) TopList(p, row + r, part).clear();
    }
  }
  template <int C>
  XF_INLINE void add(const Tile<R, C>& S, int column) {
    const ColVec<R> most = row_max(S);
    alignas(64) float row_most[R];
    i32x16 above = {};
    XF_UNROLL for (int v = 0; v < R / kLanes; ++v) {
      store_as(row_most + v * kLanes, most.x[v]);
      above |= most.x[v] > load_as<f32x16>(last + v * kLanes);
    }
    if (!any(above)) return;
    XF_NO_UNROLL for (int r = 0; r < rows; ++r) {
      if (!(row_most[r] > last[r])) continue;
      TopList list(p, row + r, part);
      list.last = last[r];
      XF_NO_UNROLL for (int c = 0; c < S.cols; ++c) {
        const float s = reinterpret_cast<const float*>(&S.at(c, r / kLanes))[r % kLanes];
        if (s > list.last) list.insert(s, column + c);
      }
      last[r] = list.last;
    }
  }
};

}  // namespace xeflash::cpu
