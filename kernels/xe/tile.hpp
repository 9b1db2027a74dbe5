// Tiles of the Xe backend: lane = column, as dpas writes its accumulators. Everything is in
// registers and unrolled. Along a row, lanes stay apart as long as they can: ColMax and ColSum hold
// 16 partial values of every row.
#pragma once

#include "xe/vec.hpp"

namespace xeflash::xe {

// One value per row.
template <int R>
struct ColVec {
  using Vec = simd<float, R>;
  Vec x;

  XF_INLINE ColVec(float value = 0.f) : x(value) {}
  XF_INLINE ColVec(Vec values) : x(values) {}

  XF_INLINE float operator[](int r) const { return x[r]; }
  XF_INLINE friend ColVec operator-(const ColVec& a, const ColVec& b) { return Vec(a.x - b.x); }
  XF_INLINE friend ColVec operator*(const ColVec& a, float b) { return Vec(a.x * b); }
  XF_INLINE friend void operator*=(ColVec& a, const ColVec& b) { a.x *= b.x; }
  XF_INLINE friend void operator+=(ColVec& a, const ColVec& b) { a.x += b.x; }
  XF_INLINE friend ColVec max(const ColVec& a, const ColVec& b) {
    return esimd::max<float>(a.x, b.x);
  }
  XF_INLINE friend ColVec exp2(const ColVec& a) { return esimd::exp2(a.x); }

  // 1 / a, and 0 where a is 0.
  XF_INLINE friend ColVec inverse_or_zero(const ColVec& a) {
    Vec inverse = esimd::inv(a.x);
    inverse.merge(0.f, a.x == 0.f);
    return inverse;
  }
  // 2^(a * scale - m), the exponent rounded once, and at most 1 or no number.
  XF_INLINE friend ColVec exp2_of_difference(const ColVec& a, float scale, const ColVec& m) {
    const Vec x = a.x * scale - m.x;
    return esimd::exp2(esimd::min<float>(x, Vec(1.f)));
  }
  // ln(2^m l), and `empty` where l is 0.
  XF_INLINE friend ColVec log_sum_exp(const ColVec& m, const ColVec& l, float empty) {
    Vec lse = (m.x + esimd::log2(l.x)) * 0.6931471805599453f;
    lse.merge(empty, l.x == 0.f);
    return lse;
  }
};

// Row sums in kLanes parts per row: added lane by lane in the loop, across lanes once at the end.
template <int R>
struct ColSum {
  simd<float, R * kLanes> x;

  XF_INLINE ColSum() : x(0.f) {}
  XF_INLINE ColSum(const ColVec<R>& sums) : x(0.f) { x.template select<R, kLanes>(0) = sums.x; }
  XF_INLINE auto row(int r) { return x.template select<kLanes, 1>(r * kLanes); }
  XF_INLINE operator ColVec<R>() const {
    return fold_rows<R, kLanes>(x, [](auto a, auto b) { return a + b; });
  }
};
template <int R>
XF_INLINE void operator*=(ColSum<R>& l, const ColVec<R>& a) {
  XF_UNROLL for (int r = 0; r < R; ++r) l.row(r) *= a[r];
}
template <int R>
XF_INLINE void operator+=(ColSum<R>& l, const ColSum<R>& a) {
  l.x += a.x;
}
template <int R>
XF_INLINE ColVec<R> inverse_or_zero(const ColSum<R>& l) {
  return inverse_or_zero(ColVec<R>(l));
}

// max(floor, scale * row maximum), scale > 0. Most steps only ask any_above; the value itself is
// worked out where it is used.
template <int R>
struct ColMax {
  simd<float, R * kLanes> x;
  float scale = 1.f;
  ColVec<R> floor = -__builtin_inff();

  XF_INLINE operator ColVec<R>() const {
    auto larger = [](auto a, auto b) { return esimd::max<float>(a, b); };
    return max(floor, ColVec<R>(fold_rows<R, kLanes>(x, larger)) * scale);
  }
};
template <int R>
XF_INLINE ColMax<R> operator*(const ColMax<R>& a, float scale) {
  return {a.x, a.scale * scale, a.floor * scale};
}
template <int R>
XF_INLINE ColMax<R> max(const ColVec<R>& floor, const ColMax<R>& a) {
  return {a.x, a.scale, floor};
}
// Does any row have a > b + margin? The floor of a is taken to be b.
template <int R>
XF_INLINE bool any_above(const ColMax<R>& a, const ColVec<R>& b, float margin) {
  floats worst = -__builtin_inff();
  XF_UNROLL for (int r = 0; r < R; ++r) {
    worst = max(worst, part<kLanes>(a.x, r * kLanes) * a.scale - b[r]);
  }
  return (worst > margin).any();
}

// R rows x C columns of fp32: x[column / kLanes][row][kLanes columns], so 8 rows x kLanes columns
// are what dpas writes, and R rows of them what a 2D block message moves.
template <int R, int C>
struct Tile {
  static_assert(R % 8 == 0);
  static constexpr int kColumns = round_up(C, kLanes), kChunks = kColumns / kLanes;
  simd<float, R * kColumns> x;

  XF_INLINE auto block(int r, int c) {
    return x.template select<8 * kLanes, 1>((c * R + r * 8) * kLanes);
  }
  XF_INLINE auto chunk(int c) const { return part<R * kLanes>(x, c * R * kLanes); }
  XF_INLINE auto row(int r, int c) { return x.template select<kLanes, 1>((c * R + r) * kLanes); }
  XF_INLINE auto row(int r, int c) const { return part<kLanes>(x, (c * R + r) * kLanes); }
};

template <int R, int C>
XF_INLINE void fill(Tile<R, C>& t, float value) {
  t.x = value;
}

// f(value, row, column) for every element; row is a scalar here, column a vector.
template <int R, int C, class F>
XF_INLINE void each(Tile<R, C>& t, int row0, int col0, F f) {
  XF_UNROLL for (int c = 0; c < t.kChunks; ++c) {
    const ints col = lane_index() + (col0 + c * kLanes);
    XF_UNROLL for (int r = 0; r < R; ++r) t.row(r, c) = f(floats(t.row(r, c)), row0 + r, col);
  }
}

template <int R, int C>
XF_INLINE ColMax<R> row_max(const Tile<R, C>& t) {
  ColMax<R> m{t.chunk(0)};
  XF_UNROLL for (int c = 1; c < t.kChunks; ++c) m.x = esimd::max<float>(m.x, t.chunk(c));
  return m;
}

// t = 2^(t * scale - m); the degree is that of other devices' polynomial.
template <int Degree, int R, int C>
XF_INLINE void exp2_of(Tile<R, C>& t, float scale, const ColVec<R>& m) {
  XF_UNROLL for (int c = 0; c < t.kChunks; ++c) {
    XF_UNROLL for (int r = 0; r < R; ++r) {
      t.row(r, c) = esimd::exp2(floats(t.row(r, c) * scale - m[r]));
    }
  }
}

template <int R, int C>
XF_INLINE void operator*=(Tile<R, C>& t, const ColVec<R>& s) {
  XF_UNROLL for (int c = 0; c < t.kChunks; ++c) {
    XF_UNROLL for (int r = 0; r < R; ++r) t.row(r, c) *= s[r];
  }
}

}  // namespace xeflash::xe
