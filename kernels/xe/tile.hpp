// Tiles of the Xe backend: lane = column, as dpas writes its accumulators. Everything is in
// registers and unrolled. Lanes along a row stay apart as long as they can: ColMax and ColSum hold
// kLanes partial values per row.
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
  XF_INLINE friend void operator*=(ColVec& a, const ColVec& b) { a.x *= b.x; }
  XF_INLINE friend void operator+=(ColVec& a, const ColVec& b) { a.x += b.x; }
  XF_INLINE friend ColVec max(const ColVec& a, const ColVec& b) {
    return esimd::max<float>(a.x, b.x);
  }
};
// Applies f to the values of all rows at once.
template <class F, int R, class... More>
XF_INLINE ColVec<R> map(F f, const ColVec<R>& a, const More&... more) {
  return simd<float, R>(f(a.x, more.x...));
}
// Returns whether any row has |a| > limit.
template <int R>
XF_INLINE bool any_beyond(const ColVec<R>& a, float limit) {
  return (magnitude(a.x) > limit).any();
}

// Row sums in kLanes parts per row: added lane by lane in the loop, across lanes once at the end.
template <int R>
struct ColSum {
  simd<float, R * kLanes> x;

  XF_INLINE ColSum() : x(0.f) {}
  XF_INLINE ColSum(const ColVec<R>& sums) : x(0.f) {
    x.template select<R, R == 1 ? 1 : kLanes>(0) = sums.x;
  }
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

// The maximum of each row and of a floor. Most steps only ask any_above, so the value itself is
// computed only where it is used.
template <int R>
struct ColMax {
  simd<float, R * kLanes> x;
  ColVec<R> floor = -kInf;

  XF_INLINE operator ColVec<R>() const {
    auto larger = [](auto a, auto b) { return esimd::max<float>(a, b); };
    return max(floor, ColVec<R>(fold_rows<R, kLanes>(x, larger)));
  }
};
template <int R>
XF_INLINE ColMax<R> max(const ColVec<R>& floor, const ColMax<R>& a) {
  return {a.x, floor};
}
// Returns whether any element is above a limit.
template <int N>
XF_INLINE bool any_above(const simd<float, N>& x, float limit) {
  simd<float, 32> most = part<32>(x, 0);
  XF_UNROLL for (int i = 32; i + 32 <= N; i += 32) most = esimd::max<float>(most, part<32>(x, i));
  floats lanes = part<kLanes>(most, 0);
  XF_UNROLL for (int i = kLanes; i < 32; i += kLanes) lanes = max(lanes, part<kLanes>(most, i));
  XF_UNROLL for (int i = N / 32 * 32; i < N; i += kLanes) lanes = max(lanes, part<kLanes>(x, i));
  return (lanes > limit).any();
}

// Products on Xe take all columns of a block, whether rows see them or not.
struct AllColumns {};
template <int R, class F>
XF_INLINE AllColumns columns_seen(int, F) {
  return {};
}

// R rows x C columns of fp32: x[column / kLanes][row][kLanes columns]. So 8 rows x kLanes columns
// are what dpas writes, and R rows x kLanes columns are what a 2D block message moves.
template <int R, int C>
struct Tile {
  static_assert(R % 8 == 0);
  static constexpr int kR = R, kC = C;
  static constexpr int kColumns = round_up(C, kLanes), kChunks = kColumns / kLanes;
  simd<float, R * kColumns> x;

  static constexpr int offset(int row, int column) {
    return (column / kLanes * R + row) * kLanes + column % kLanes;
  }

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

// Calls f(value, row, column) for every element; row is a scalar here, column a vector.
template <int R, int C, class F>
XF_INLINE void each(Tile<R, C>& t, int row0, int col0, F f) {
  XF_UNROLL for (int c = 0; c < t.kChunks; ++c) {
    const ints col = lane_index() + (col0 + c * kLanes);
    XF_UNROLL for (int r = 0; r < R; ++r) t.row(r, c) = f(floats(t.row(r, c)), row0 + r, col);
  }
}

// An int for each row or column of a tile.
template <int N>
struct Numbers {
  static constexpr int kCount = round_up(N, kLanes);
  simd<int, kCount> x;
  template <class F>
  XF_INLINE explicit Numbers(F f) {
    XF_UNROLL for (int i = 0; i < kCount; i += kLanes) {
      x.template select<kLanes, 1>(i) = f(lane_index() + i);
    }
  }
};

// Calls f(value, the row's number, the column's number, row, column) for every element.
template <int R, int C, class F>
XF_INLINE void each(Tile<R, C>& t, const Numbers<R>& rows, const Numbers<C>& columns, int row0,
                    int col0, F f) {
  XF_UNROLL for (int c = 0; c < t.kChunks; ++c) {
    const ints column = part<kLanes>(columns.x, c * kLanes);
    const ints col = lane_index() + (col0 + c * kLanes);
    XF_UNROLL for (int r = 0; r < R; ++r) {
      const int row = rows.x[r];
      t.row(r, c) = f(floats(t.row(r, c)), row, column, row0 + r, col);
    }
  }
}
// Calls f(value, the row's number, the column's number) for every element.
template <int R, int C, class F>
XF_INLINE void each(Tile<R, C>& t, const Numbers<R>& rows, const Numbers<C>& columns, F f) {
  each(t, rows, columns, 0, 0, [&](auto s, auto a, auto b, auto, auto) { return f(s, a, b); });
}

// Calls f(value, slope, row, column), which changes an element of each of the two tiles.
template <int R, int C, class F>
XF_INLINE void each(Tile<R, C>& t, Tile<R, C>& slopes, int row0, int col0, F f) {
  XF_UNROLL for (int c = 0; c < t.kChunks; ++c) {
    const ints col = lane_index() + (col0 + c * kLanes);
    XF_UNROLL for (int r = 0; r < R; ++r) {
      floats value = t.row(r, c), slope = slopes.row(r, c);
      f(value, slope, row0 + r, col);
      t.row(r, c) = value;
      slopes.row(r, c) = slope;
    }
  }
}

template <int R, int C>
XF_INLINE ColMax<R> row_max(const Tile<R, C>& t) {
  ColMax<R> m{t.chunk(0)};
  XF_UNROLL for (int c = 1; c < t.kChunks; ++c) m.x = esimd::max<float>(m.x, t.chunk(c));
  return m;
}

template <int R, int C>
XF_INLINE void add_row_sums(ColSum<R>& l, const Tile<R, C>& t) {
  XF_UNROLL for (int c = 0; c < t.kChunks; ++c) l.x += t.chunk(c);
}

// One value per column; the values of a chunk are one vector.
template <int C>
struct Across {
  static constexpr int kColumns = round_up(C, kLanes);
  simd<float, kColumns> x;

  XF_INLINE floats chunk(int c) const { return part<kLanes>(x, c * kLanes); }
};
template <class F, int C, class... More>
XF_INLINE Across<C> map(F f, const Across<C>& a, const More&... more) {
  return {simd<float, Across<C>::kColumns>(f(a.x, more.x...))};
}

template <int R, int C>
XF_INLINE Across<C> column_sums(const Tile<R, C>& t) {
  Across<C> sums;
  XF_UNROLL for (int c = 0; c < t.kChunks; ++c) {
    floats sum = t.row(0, c);
    XF_UNROLL for (int r = 1; r < R; ++r) sum += t.row(r, c);
    sums.x.template select<kLanes, 1>(c * kLanes) = sum;
  }
  return sums;
}

// log2 P = S * scale - m
template <int R, int C>
XF_INLINE Tile<R, C> log_probs(const Tile<R, C>& S, float scale, const ColVec<R>& m) {
  Tile<R, C> X;
  XF_UNROLL for (int c = 0; c < S.kChunks; ++c) {
    XF_UNROLL for (int r = 0; r < R; ++r) X.row(r, c) = floats(S.row(r, c) * scale - m[r]);
  }
  return X;
}
template <int R, int C>
XF_INLINE bool any_above(const Tile<R, C>& t, float limit) {
  return any_above(t.x, limit);
}

// Rows of a chunk that one instruction of 32 lanes takes.
constexpr int kRowsAtOnce = 32 / kLanes;
using wide_floats = simd<float, 32>;

// t = 2^(t * scale - x), where x is a value per row or per column. Degree is ignored: other
// backends have a polynomial of that degree.
template <int Degree, int R, int C>
XF_INLINE void exp2_minus(Tile<R, C>& t, float scale, const ColVec<R>& x) {
  XF_UNROLL for (int c = 0; c < t.kChunks; ++c) {
    XF_UNROLL for (int r = 0; r < R; ++r) t.row(r, c) = floats(t.row(r, c) * scale - x[r]);
  }
  XF_UNROLL for (int i = 0; i < R * t.kColumns; i += 32) {
    auto some = t.x.template select<32, 1>(i);
    some = esimd::exp2(wide_floats(some));
  }
}
template <int Degree, int R, int C>
XF_INLINE void exp2_minus(Tile<R, C>& t, float scale, const Across<C>& x) {
  XF_UNROLL for (int c = 0; c < t.kChunks; ++c) {
    const wide_floats top = x.chunk(c).template replicate_vs_w<kRowsAtOnce, 0, kLanes>(0);
    XF_UNROLL for (int r = 0; r < R; r += kRowsAtOnce) {
      auto some = t.x.template select<32, 1>((c * R + r) * kLanes);
      some = esimd::exp2(wide_floats(wide_floats(some) * scale - top));
    }
  }
}

// t = min(t - x, 0), where x is a value per row or per column; t stays as it is where x is 0.
XF_INLINE floats lowered(floats v, floats x) {
  const floats most = select(x == 0.f, floats(kInf), floats(0.f));
  v -= x;
  v.merge(most, v > most);  // NaN stays
  return v;
}
template <int R, int C>
XF_INLINE void lower(Tile<R, C>& t, const ColVec<R>& x) {
  XF_UNROLL for (int c = 0; c < t.kChunks; ++c) {
    XF_UNROLL for (int r = 0; r < R; ++r) {
      t.row(r, c) = lowered(floats(t.row(r, c)), floats(x[r]));
    }
  }
}
template <int R, int C>
XF_INLINE void lower(Tile<R, C>& t, const Across<C>& x) {
  XF_UNROLL for (int c = 0; c < t.kChunks; ++c) {
    XF_UNROLL for (int r = 0; r < R; ++r) {
      t.row(r, c) = lowered(floats(t.row(r, c)), x.chunk(c));
    }
  }
}
template <int C>
XF_INLINE bool any_beyond(const Across<C>& a, float limit) {
  return (magnitude(a.x) > limit).any();
}

// dP = P (dP - Delta), where Delta is a value per row or per column.
template <int R, int C>
XF_INLINE void weigh(Tile<R, C>& dP, const Tile<R, C>& P, const ColVec<R>& Delta) {
  XF_UNROLL for (int c = 0; c < dP.kChunks; ++c) {
    XF_UNROLL for (int r = 0; r < R; ++r) dP.row(r, c) -= Delta[r];
  }
  dP *= P;
}
template <int R, int C>
XF_INLINE void weigh(Tile<R, C>& dP, const Tile<R, C>& P, const Across<C>& Delta) {
  XF_UNROLL for (int c = 0; c < dP.kChunks; ++c) {
    const wide_floats delta = Delta.chunk(c).template replicate_vs_w<kRowsAtOnce, 0, kLanes>(0);
    XF_UNROLL for (int r = 0; r < R; r += kRowsAtOnce) {
      const int i = (c * R + r) * kLanes;
      auto some = dP.x.template select<32, 1>(i);
      some = (wide_floats(some) - delta) * part<32>(P.x, i);
    }
  }
}
template <int R, int C>
XF_INLINE void operator+=(Tile<R, C>& a, const Tile<R, C>& b) {
  a.x += b.x;
}
template <int R, int C>
XF_INLINE void operator*=(Tile<R, C>& a, const Tile<R, C>& b) {
  XF_UNROLL for (int i = 0; i < R * a.kColumns; i += 32) {
    a.x.template select<32, 1>(i) *= part<32>(b.x, i);
  }
}

template <int R, int C>
XF_INLINE void operator*=(Tile<R, C>& t, const ColVec<R>& s) {
  XF_UNROLL for (int c = 0; c < t.kChunks; ++c) {
    XF_UNROLL for (int r = 0; r < R; ++r) t.row(r, c) *= s[r];
  }
}
template <int R, int C>
XF_INLINE void operator-=(Tile<R, C>& t, const ColVec<R>& s) {
  XF_UNROLL for (int c = 0; c < t.kChunks; ++c) {
    XF_UNROLL for (int r = 0; r < R; ++r) t.row(r, c) -= s[r];
  }
}

}  // namespace xeflash::xe
