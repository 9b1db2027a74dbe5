// Lists of the largest logits on Xe, kListStep elements at a time.
#pragma once

#include "xe/lanes.hpp"

namespace xeflash::xe {

struct TopList {
  using Values = simd<float, kListStep>;
  using Tokens = simd<int32_t, kListStep>;
  float* values;
  int32_t* tokens;
  int k, length;
  float last = -kInf;

  XF_INLINE TopList(const TopKParams& p, int row, int part) : k(p.k), length(p.length) {
    const int64_t at = (static_cast<int64_t>(row) * p.parts + part) * p.length;
    values = p.values + at;
    tokens = p.tokens + at;
  }
  XF_INLINE void clear() {
    _Pragma("unroll 1") for (int i = 0; i < length; i += kListStep) {
      esimd::block_store<float, kListStep>(values + i, Values(-kInf));
      esimd::block_store<int32_t, kListStep>(tokens + i, Tokens(0));
    }
  }
  XF_INLINE float value(int i) const { return value_at(values, i); }
  XF_INLINE int token(int i) const { return value_at(tokens, i); }
  XF_INLINE void find_last() { last = value(k - 1); }
  // Inserts a value above the last one, behind values that are as large; smaller ones move down by
  // one.
  XF_INLINE void insert(float value, int token) {
    float value_before = kInf;
    int token_before = 0;
    _Pragma("unroll 1") for (int i = 0; i < length; i += kListStep) {
      const Values old = esimd::block_load<float, kListStep>(values + i);
      const Tokens old_tokens = esimd::block_load<int32_t, kListStep>(tokens + i);
      Values moved = value_before;
      Tokens moved_tokens = token_before;
      moved.select<kListStep - 1, 1>(1) = part<kListStep - 1>(old, 0);
      moved_tokens.select<kListStep - 1, 1>(1) = part<kListStep - 1>(old_tokens, 0);
      value_before = old[kListStep - 1];
      token_before = old_tokens[kListStep - 1];
      const auto is_place = moved >= value;
      moved.merge(Values(value), is_place);
      moved_tokens.merge(Tokens(token), is_place);
      const auto stays = old >= value;
      moved.merge(old, stays);
      moved_tokens.merge(old_tokens, stays);
      esimd::block_store<float, kListStep>(values + i, moved);
      esimd::block_store<int32_t, kListStep>(tokens + i, moved_tokens);
      const simd<int, kListStep> at(i, 1);
      Values at_last = -kInf;
      at_last.merge(moved, at == k - 1);
      last = i + kListStep >= k && i < k ? esimd::hmax<float>(at_last) : last;
    }
  }
  XF_INLINE void store(const TopKParams& p, int row) const {
    float* to = p.largest + static_cast<int64_t>(row) * k;
    uint32_t* found = p.largest_tokens + static_cast<int64_t>(row) * k * 2;
    _Pragma("unroll 1") for (int i = 0; i < length; i += kListStep) {
      Values x = esimd::block_load<float, kListStep>(values + i);
      x.merge(Values(-kInf), x == kNoScore);
      const simd<int, kListStep> at(i, 1);
      const auto there = at < k;
      const simd<uint32_t, kListStep> token = esimd::block_load<int32_t, kListStep>(tokens + i);
      esimd::scatter<float, kListStep>(to, Offsets<kListStep>(at * 4), x, there);
      esimd::scatter<uint32_t, kListStep>(found, Offsets<kListStep>(at * 8), token, there);
      esimd::scatter<uint32_t, kListStep>(found, Offsets<kListStep>(at * 8 + 4),
                                          simd<uint32_t, kListStep>(0), there);
    }
  }
};

template <int R>
struct TopLists {
  const TopKParams& p;
  int row, part;
  ColVec<R> last;

  XF_INLINE TopLists(const TopKParams& p, int row, int part)
      : p(p), row(row), part(part), last(-kInf) {
    _Pragma("unroll 1") for (int r = 0; r < R && row + r < p.rows; ++r) {
      TopList(p, row + r, part).clear();
    }
  }
  template <int C>
  XF_INLINE void add(const Tile<R, C>& S, int column) {
    const simd<int, C> at(0, 1);
    XF_UNROLL for (int r = 0; r < R; ++r) {
      if (row + r >= p.rows) break;
      simd<float, C> s;
      XF_UNROLL for (int c = 0; c < S.kChunks; ++c) {
        s.template select<kLanes, 1>(c * kLanes) = S.row(r, c);
      }
      float most = esimd::hmax<float>(s);
      if (!(most > last[r])) continue;
      TopList list(p, row + r, part);
      list.last = last[r];
      _Pragma("unroll 1") while (most > list.last) {
        simd<int, C> places = C;
        places.merge(at, s == most);
        const int first = esimd::hmin<int>(places);
        list.insert(most, column + first);
        s.merge(simd<float, C>(-kInf), at == first);
        most = esimd::hmax<float>(s);
      }
      last.x[r] = list.last;
    }
  }
};

}  // namespace xeflash::xe
