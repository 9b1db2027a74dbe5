// Rows that the threads of a group go through together; they exchange their results through shared
// memory.
#pragma once

#include "products/sample_params.hpp"
#include "xe/group.hpp"
#include "xe/lanes.hpp"

namespace xeflash::xe {

constexpr int kBlock = 64;
using Words = uints;

XF_INLINE void allocate_turns() { esimd::slm_init<Group::threads * 4>(); }
template <class X, class Op>
XF_INLINE X fold_turns(X x, Op op) {
  static_assert(sizeof(X) == 4);
  esimd::slm_block_store<X, 1>(Group::turn() * 4, simd<X, 1>(x));
  esimd::barrier();
  simd<X, Group::threads> all = esimd::slm_block_load<X, Group::threads>(0);
  esimd::barrier();  // before the next call overwrites what was read
  X found = all[0];
  XF_UNROLL for (int i = 1; i < Group::threads; ++i) found = op(found, static_cast<X>(all[i]));
  return found;
}

template <class T>
struct Row {
  const T* data;
  int columns;

  XF_INLINE Row(const SampleParams& p, int row)
      : data(static_cast<const T*>(p.logits) + static_cast<int64_t>(row) * p.logits_row),
        columns(p.columns) {}
  XF_INLINE floats at(int column) const {
    const ints k = lane_index() + column;
    const floats v = value_at(data, at_most(k, columns - 1));
    return select((k < columns) & (v == v), v, floats(-kInf));
  }
};

XF_INLINE bool is_any(lane_mask mask) { return mask.any(); }
XF_INLINE ints as_ints(floats x) { return x.template bit_cast_view<int>(); }
XF_INLINE uints to_words(ints x) { return x; }
XF_INLINE floats floats_of_halves(uints x) { return esimd::convert<float>(x); }
XF_INLINE float largest_of(floats x) { return esimd::hmax<float>(x); }
XF_INLINE float sum_of_lanes(floats x) { return esimd::reduce<float>(x, std::plus<>()); }
XF_INLINE int sum_of_lanes(ints x) { return esimd::reduce<int>(x, std::plus<>()); }

template <class T>
XF_INLINE T number_of_row(const PerRow<T>& x, int row) {
  return x.data ? value_at(x.data, row) : x.value;
}
XF_INLINE void halves_of_row(const PerRow<int64_t>& x, int row, uint32_t (&halves)[2]) {
  const auto bits = static_cast<uint64_t>(x.value);
  halves[0] = static_cast<uint32_t>(bits), halves[1] = static_cast<uint32_t>(bits >> 32);
  if (!x.data) return;
  const auto* words = reinterpret_cast<const int32_t*>(x.data + row);
  XF_UNROLL for (int i = 0; i < 2; ++i) halves[i] = static_cast<uint32_t>(value_at(words, i));
}
XF_INLINE void store_token(uint32_t* tokens, int row, int token) {
  simd<uint32_t, 2> halves = static_cast<uint32_t>(token);
  halves.template select<1, 1>(1) = static_cast<uint32_t>(token >> 31);
  esimd::scatter<uint32_t, 2>(tokens + static_cast<int64_t>(row) * 2, simd<uint32_t, 2>(0, 4),
                              halves);
}

}  // namespace xeflash::xe
