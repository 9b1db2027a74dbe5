// Products of few rows on the CPU. Up to 8 rows, lane = input: each vector of weights is loaded
// once for all rows, and lanes are added up at the end. For more rows, lane = row: a tile of
// weights is widened once and stays in L1 for all of them.
#pragma once

#include "cpu/mma.hpp"
#include "cpu/quantised.hpp"
#include "cpu/results.hpp"
#include "cpu/row_mma.hpp"
#include "products/weights.hpp"

namespace xeflash::cpu {

constexpr int kMostDotRows = 8;

template <class Config>
XF_INLINE void allocate_products() {}

// ---- lane = input -------------------------------------------------------------------------------

// Sums of products, each in 16 parts, one per lane.
template <class Config>
struct Dots {
  static constexpr int Br = Config::rows, Bn = Config::outputs;
  static_assert(Bn % kLanes == 0);
  alignas(64) f32x16 x[Bn][Br] = {};
};

// Number of outputs that are computed at a time. Their sums stay in registers, beside a vector of
// weights for each output and one vector of x.
template <int Br>
constexpr int kOutputsAtOnce = !kHasAvx512 ? (Br == 1   ? 4
                                              : Br <= 3 ? 2
                                                        : 1)
                               : Br <= 3   ? 8
                               : Br <= 4   ? 6
                               : Br <= 6   ? 4
                                           : 3;

// `Count` elements, of which the first `count` are copied and the others are 0.
template <int Count, class T>
struct Padded {
  alignas(64) T x[Count] = {};
  XF_INLINE Padded(const T* from, int count) { __builtin_memcpy(x, from, count * sizeof(T)); }
};

// Number of elements that a step multiplies: 16 numbers, or 16 pairs.
template <class T>
constexpr int kStep = kPaired<T> ? 2 * kLanes : kLanes;
template <class T>
XF_INLINE auto load_step(const T* p) {
  if constexpr (kPaired<T>)
    return load_as<u32x16>(p);
  else
    return load_widened(p);
}

template <int Nt, class Config, class T, class W>
  requires(!W::kHasScales)
XF_INLINE void dot_outputs(Dots<Config>& sums, const Rows<const T>& x, const W& weights, int n0,
                           int k0, int inputs) {
  constexpr int Br = Config::rows;
  const T *w[Nt], *rows[Br];
  XF_UNROLL for (int i = 0; i < Nt; ++i) w[i] = weights.rows.row_or_last(n0 + i);
  XF_UNROLL for (int r = 0; r < Br; ++r) rows[r] = x.row_or_last(r);
  f32x16 acc[Nt][Br] = {};
  const auto step = [&](auto x_of, auto w_of) __attribute__((always_inline)) {
    decltype(w_of(0)) v[Nt];
    XF_UNROLL for (int i = 0; i < Nt; ++i) v[i] = w_of(i);
    XF_UNROLL for (int r = 0; r < Br; ++r) {
      const auto input = x_of(r);
      XF_UNROLL for (int i = 0; i < Nt; ++i) acc[i][r] = dot(acc[i][r], input, v[i]);
    }
  };
  int k = k0;
  XF_NO_UNROLL for (; k + kStep<T> <= inputs; k += kStep<T>) {
    step([&](int r) { return load_step(rows[r] + k); }, [&](int i) { return load_step(w[i] + k); });
  }
  if (k < inputs) {
    const auto last = [&](const T* p) {
      return load_step(Padded<kStep<T>, T>(p + k, inputs - k).x);
    };
    step([&](int r) { return last(rows[r]); }, [&](int i) { return last(w[i]); });
  }
  XF_UNROLL for (int i = 0; i < Nt; ++i) {
    XF_UNROLL for (int r = 0; r < Br; ++r) sums.x[n0 + i][r] += acc[i][r];
  }
}

// 8-bit weights, widened 16 at a time. The inputs of a group share a scale, so each group is summed
// on its own and then scaled.
template <int Nt, class Config, class T, class W>
  requires(W::kHasScales && !W::kPacked)
XF_INLINE void dot_outputs(Dots<Config>& sums, const Rows<const T>& x, const W& weights, int n0,
                           int k0, int inputs) {
  using E = typename W::Element;
  constexpr int Br = Config::rows;
  const E* w[Nt];
  const T* rows[Br];
  XF_UNROLL for (int i = 0; i < Nt; ++i) w[i] = weights.rows.row_or_last(n0 + i);
  XF_UNROLL for (int r = 0; r < Br; ++r) rows[r] = x.row_or_last(r);
  const int group = W::kGroup ? W::kGroup : inputs;
  for (int first = k0; first < inputs; first += group) {
    const int end = first + group < inputs ? first + group : inputs, g = first / group;
    f32x16 part[Nt][Br] = {};
    float zero[Nt];
    XF_UNROLL for (int i = 0; i < Nt; ++i) zero[i] = weights.zero(g, n0 + i);
    const auto step = [&](auto x_of, auto w_of) __attribute__((always_inline)) {
      f32x16 v[Nt];
      XF_UNROLL for (int i = 0; i < Nt; ++i) v[i] = w_of(i) - zero[i];
      XF_UNROLL for (int r = 0; r < Br; ++r) {
        const f32x16 input = x_of(r);
        XF_UNROLL for (int i = 0; i < Nt; ++i) part[i][r] = fma(input, v[i], part[i][r]);
      }
    };
    int k = first;
    XF_NO_UNROLL for (; k + kLanes <= end; k += kLanes) {
      step([&](int r) { return load_widened(rows[r] + k); },
           [&](int i) { return load_widened(w[i] + k); });
    }
    if (k < end) {
      step([&](int r) { return load_widened(Padded<kLanes, T>(rows[r] + k, end - k).x); },
           [&](int i) { return load_widened(Padded<kLanes, E>(w[i] + k, end - k).x); });
    }
    XF_UNROLL for (int i = 0; i < Nt; ++i) {
      const float scale = to_float(*weights.scale(g, n0 + i));
      XF_UNROLL for (int r = 0; r < Br; ++r) {
        sums.x[n0 + i][r] = fma(part[i][r], scale, sums.x[n0 + i][r]);
      }
    }
  }
}

// Whole numbers. The 16 numbers from -zero on are what 4 bits stand for, for a zero of -128 to 127;
// they are the table in which an instruction looks up 16 weights at a time.
struct WholeNumbers {
  static constexpr int kLow = -127, kCount = 271;
  float wide[kCount];
  uint16_t narrow[kCount];  // bf16

  constexpr WholeNumbers() : wide(), narrow() {
    for (int i = 0; i < kCount; ++i) {
      wide[i] = static_cast<float>(i + kLow);
      narrow[i] = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, wide[i]) >> 16);
    }
  }
};
constexpr WholeNumbers kWholeNumbers;

// PairsOf4 makes pairs of bf16, which are not scaled yet; NumbersOf4 makes fp32 numbers that are
// scaled already.
struct PairsOf4 {
  u32x16 table;
  PairsOf4() = default;
  XF_INLINE PairsOf4(int zero, float) {
    const auto some = load_as<u16x16>(kWholeNumbers.narrow - WholeNumbers::kLow - zero);
    const auto twice =
        __builtin_shufflevector(some, some, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0,
                                1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    table = bit_cast<u32x16>(twice);
  }
  // vpermw picks words by 5 bits; the highest of them does not matter, as the table has its 16
  // words twice.
  XF_INLINE u32x16 of(u32x16 words) const {
    u32x16 pairs;
    asm("vpermw %1, %2, %0" : "=v"(pairs) : "v"(table), "v"(words));
    return pairs;
  }
};
struct NumbersOf4 {
  f32x16 table;
  float zero, scale;
  NumbersOf4() = default;
  XF_INLINE NumbersOf4(int z, float s) : zero(z), scale(s) {
    if constexpr (kHasAvx512) {
      table = load_as<f32x16>(kWholeNumbers.wide - WholeNumbers::kLow - z) * s;
    }
  }
  XF_INLINE f32x16 of(u32x16 dwords) const {
    if constexpr (kHasAvx512) {
      f32x16 numbers;
      asm("vpermps %1, %2, %0" : "=v"(numbers) : "v"(table), "v"(dwords));
      return numbers;
    } else {
      return (__builtin_convertvector(bit_cast<i32x16>(dwords & 15u), f32x16) - zero) * scale;
    }
  }
};

// 32 inputs of a row: those with even and those with odd numbers.
struct EvenOdd {
  f32x16 even, odd;
};
template <class T>
XF_INLINE EvenOdd load_even_odd(const T* p) {
  if constexpr (std::is_same_v<T, bf16>) {
    const auto pairs = load_as<u32x16>(p);
    return {bit_cast<f32x16>(pairs << 16), bit_cast<f32x16>(pairs & 0xffff0000u)};
  } else {
    const f32x16 a = load_widened(p), b = load_widened(p + kLanes);
    return {
        __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
        __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)};
  }
}

template <int Nt, class Config, class T, class W>
  requires(W::kPacked)
XF_INLINE void dot_outputs(Dots<Config>& sums, const Rows<const T>& x, const W& weights, int n0,
                           int k0, int inputs) {
  constexpr int Br = Config::rows;
  constexpr bool kPairs = kPaired<T>;
  using Table = std::conditional_t<kPairs, PairsOf4, NumbersOf4>;
  const uint8_t* w[Nt];
  const T* rows[Br];
  XF_UNROLL for (int i = 0; i < Nt; ++i) w[i] = &weights.rows.row_or_last(n0 + i)->bits;
  XF_UNROLL for (int r = 0; r < Br; ++r) rows[r] = x.row_or_last(r);

  Table tables[Nt];
  float scales[Nt];
  f32x16 part[Nt][Br] = {};
  const auto begin = [&](int g) __attribute__((always_inline)) {
    XF_UNROLL for (int i = 0; i < Nt; ++i) {
      scales[i] = to_float(*weights.scale(g, n0 + i));
      tables[i] = Table(weights.zero(g, n0 + i), scales[i]);
    }
  };
  const auto end = [&]() __attribute__((always_inline)) {  // NumbersOf4 has scaled already
    if constexpr (kPairs) {
      XF_UNROLL for (int i = 0; i < Nt; ++i) {
        XF_UNROLL for (int r = 0; r < Br; ++r) {
          sums.x[n0 + i][r] = fma(part[i][r], scales[i], sums.x[n0 + i][r]);
          part[i][r] = 0.f;
        }
      }
    }
  };
  const auto load_input = [&](const T* p) __attribute__((always_inline)) {
    if constexpr (kPairs)
      return load_as<u32x16>(p);
    else
      return load_even_odd(p);
  };
  if constexpr (W::kGroup == 0) begin(0);
  T last[Br][kUnitInputs];
  // One text for all units, of which the last may be a part: two take the driver's compiler nine
  // seconds.
  XF_NO_UNROLL for (int k = k0; k < inputs; k += kUnitInputs) {
    const int count = inputs - k < kUnitInputs ? inputs - k : kUnitInputs;
    const T* from[Br];
    XF_UNROLL for (int r = 0; r < Br; ++r) from[r] = rows[r] + k;
    if (count < kUnitInputs) {
      XF_NO_UNROLL for (int r = 0; r < Br; ++r) {
        __builtin_memcpy(last[r], from[r], count * sizeof(T));
        XF_NO_UNROLL for (int c = count; c < kUnitInputs; ++c) last[r][c] = T{};
      }
      XF_UNROLL for (int r = 0; r < Br; ++r) from[r] = last[r];
    }
    u32x16 dwords[Nt];
    XF_UNROLL for (int i = 0; i < Nt; ++i) dwords[i] = load_as<u32x16>(w[i] + k / 2);
    const auto step = [&](int at) __attribute__((always_inline)) {
      if constexpr (W::kGroup > 0) {
        if (at % W::kGroup == 0) begin((k + at) / W::kGroup);
      }
      if constexpr (kPairs) {
        u32x16 v[Nt];
        XF_UNROLL for (int i = 0; i < Nt; ++i) v[i] = tables[i].of(dwords[i]);
        XF_UNROLL for (int r = 0; r < Br; ++r) {
          const u32x16 input = load_input(from[r] + at);
          XF_UNROLL for (int i = 0; i < Nt; ++i) part[i][r] = dot(part[i][r], input, v[i]);
        }
      } else {
        EvenOdd v[Nt];
        XF_UNROLL for (int i = 0; i < Nt; ++i) {
          v[i] = {tables[i].of(dwords[i]), tables[i].of(dwords[i] >> 16)};
        }
        XF_UNROLL for (int r = 0; r < Br; ++r) {
          const EvenOdd input = load_input(from[r] + at);
          XF_UNROLL for (int i = 0; i < Nt; ++i) {
            part[i][r] = fma(input.odd, v[i].odd, fma(input.even, v[i].even, part[i][r]));
          }
        }
      }
      XF_UNROLL for (int i = 0; i < Nt; ++i) dwords[i] >>= 4;
      if (W::kGroup > 0 && (at + kPartInputs) % W::kGroup == 0) end();
    };
    if constexpr (sizeof(T) == 2) {  // a quarter faster, unrolled
      XF_UNROLL for (int at = 0; at < kUnitInputs; at += kPartInputs) {
        if (at < count) step(at);
      }
    } else {  // a half faster, not unrolled
      XF_NO_UNROLL for (int at = 0; at < count; at += kPartInputs) step(at);
    }
  }
  end();  // for a group that ends with the inputs
  if constexpr (!kPairs) {
    XF_UNROLL for (int i = 0; i < Nt; ++i) {
      XF_UNROLL for (int r = 0; r < Br; ++r) sums.x[n0 + i][r] += part[i][r];
    }
  }
}

template <class Config, class T, class W>
XF_INLINE void add_products(Dots<Config>& sums, const Rows<const T>& x, const W& weights, int k) {
  constexpr int Nt = kOutputsAtOnce<Config::rows>, kWhole = Config::outputs / Nt * Nt;
  const int end = k < x.width - Config::inputs ? k + Config::inputs : x.width;
  XF_NO_UNROLL for (int n = 0; n < kWhole && n < weights.rows.size(); n += Nt) {
    dot_outputs<Nt>(sums, x, weights, n, k, end);
  }
  if constexpr (kWhole < Config::outputs) {
    if (kWhole < weights.rows.size()) {
      dot_outputs<Config::outputs - kWhole>(sums, x, weights, kWhole, k, end);
    }
  }
}

template <class Out, class T, class Config>
XF_INLINE void store_products(const Rows<Out>& out, Dots<Config>& sums, const T* bias, int output) {
  for (int n = 0; n < Config::outputs && output + n < out.width; n += kLanes) {
    const int count = out.width - (output + n);
    f32x16 added = 0.f;
    if (bias) {
      const T* from = bias + output + n;
      added = count >= kLanes ? load_widened(from) : load_widened(Padded<kLanes, T>(from, count).x);
    }
    XF_NO_UNROLL for (int r = 0; r < Config::rows && r < out.size(); ++r) {
      f32x16 parts[kLanes];
      XF_UNROLL for (int i = 0; i < kLanes; ++i) parts[i] = sums.x[n + i][r];
      store_some(out.row(r) + output + n, sum_each(parts) + added, count);
    }
  }
}

// ---- lane = row ---------------------------------------------------------------------------------

template <class Config>
struct TileSums {
  static constexpr int Br = Config::rows, Bk = Config::inputs, kOutputs = 48;
  static constexpr int kTiles = Config::outputs / kOutputs;
  static_assert(Config::outputs % kOutputs == 0);
  Tile<Br, kOutputs> x[kTiles];

  XF_INLINE TileSums() {
    for (auto& tile : x) fill(tile, 0.f);
  }
};

// Bk inputs of N rows of weights, as fp32 numbers that are scaled already.
template <int N, int Bk, class W>
struct Widened {
  alignas(64) float x[N][Bk];

  XF_INLINE Widened(const W& weights, int n0, int k0, int inputs) {
    const int count = inputs - k0 < Bk ? inputs - k0 : Bk;
    for (int n = 0; n < N && n0 + n < weights.rows.size(); ++n) {
      const auto* row = weights.rows.row(n0 + n);
      const auto group = [&](int k) { return W::kGroup ? (k0 + k) / W::kGroup : 0; };
      if constexpr (W::kPacked) {
        for (int k = 0; k < Bk; k += kPartInputs) {
          const int at = k0 + k;
          const bool there = k < count;
          const NumbersOf4 table(there ? weights.zero(group(k), n0 + n) : 0,
                                 there ? to_float(*weights.scale(group(k), n0 + n)) : 0.f);
          const auto dwords = load_as<u32x16>(row + at / kUnitInputs * kUnitBytes) >>
                              static_cast<uint32_t>(at % kUnitInputs / kPartInputs * 4);
          const f32x16 even = table.of(dwords), odd = table.of(dwords >> 16);
          store_as(&x[n][k], __builtin_shufflevector(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20,
                                                     5, 21, 6, 22, 7, 23));
          store_as(&x[n][k + kLanes], __builtin_shufflevector(even, odd, 8, 24, 9, 25, 10, 26, 11,
                                                              27, 12, 28, 13, 29, 14, 30, 15, 31));
        }
      } else {
        using E = typename W::Element;
        for (int k = 0; k < Bk; k += kLanes) {
          f32x16 v = 0.f;
          if (k < count) {
            const float zero = weights.zero(group(k), n0 + n);
            v = (k + kLanes <= count ? load_widened(row + k0 + k)
                                     : load_widened(Padded<kLanes, E>(row + k0 + k, count - k).x)) -
                zero;
            v *= to_float(*weights.scale(group(k), n0 + n));
          }
          store_as(&x[n][k], v);
        }
      }
    }
  }
};

// N rows of Bk elements of a matrix; rows and columns that do not exist are 0.
template <int N, int Bk, class T>
struct PaddedRows {
  alignas(64) T x[N][Bk];
  // The loops are not unrolled: unrolled, they take compilers a minute.
  XF_INLINE PaddedRows(const Rows<const T>& m, int column) {
    XF_NO_UNROLL for (int i = 0; i < N; ++i) {
      const int there = i < m.size() ? m.width - column : 0;
      __builtin_memcpy(x[i], m.row_or_last(i) + column, there * sizeof(T));
      XF_NO_UNROLL for (int c = there; c < Bk; ++c) x[i][c] = T{};
    }
  }
};

template <class Config, class T, class W>
XF_INLINE void add_products(TileSums<Config>& sums, const Rows<const T>& x, const W& weights,
                            int k) {
  constexpr int Br = Config::rows, Bk = Config::inputs, N = TileSums<Config>::kOutputs;
  using M = std::conditional_t<W::kHasScales, float, T>;  // the type that is multiplied
  const bool whole = k + Bk <= x.width;
  Left<M, Br, Bk> X;
  if (whole) {
    load(X, x.columns(k, x.width));
  } else {
    const PaddedRows<Br, Bk, T> padded(x, k);
    load(X, Rows<const T>{padded.x[0], Bk, x.size() < Br ? x.size() : Br});
  }
  for (int i = 0; i < TileSums<Config>::kTiles; ++i) {
    const int n = i * N, count = weights.rows.size() - n;
    if (count <= 0) break;
    const auto multiply = [&](const Rows<const M>& rows) __attribute__((always_inline)) {
      Tile<Br, N> part;
      mma_ABt(part, X, RightT<M, N, Bk>(rows));
      for (int c = 0; c < part.cols; ++c) {
        XF_UNROLL for (int r = 0; r < Br / kLanes; ++r) sums.x[i].at(c, r) += part.at(c, r);
      }
    };
    if constexpr (W::kHasScales) {
      const Widened<N, Bk, W> widened(weights, n, k, x.width);
      multiply({widened.x[0], Bk, count < N ? count : N});
    } else if (whole) {
      multiply(weights.rows.from(n).columns(k, x.width));
    } else {
      const PaddedRows<N, Bk, T> padded(weights.rows.from(n), k);
      multiply({padded.x[0], Bk, count < N ? count : N});
    }
  }
}

template <class Out, class T, class Config>
XF_INLINE void store_products(const Rows<Out>& out, TileSums<Config>& sums, const T* bias,
                              int output) {
  constexpr int N = TileSums<Config>::kOutputs;
  for (int i = 0; i < TileSums<Config>::kTiles && output + i * N < out.width; ++i) {
    const int first = output + i * N;
    for (int c = 0; bias && c < N && first + c < out.width; ++c) {
      XF_UNROLL for (int r = 0; r < Config::rows / kLanes; ++r) {
        sums.x[i].at(c, r) += to_float(bias[first + c]);
      }
    }
    store(RaggedRows<Out>(out.columns(first, out.width)), sums.x[i]);
  }
}

// ---- either -------------------------------------------------------------------------------------

template <class Config>
using Products = std::conditional_t<(Config::rows <= kMostDotRows), Dots<Config>, TileSums<Config>>;
template <class Sums, class W>
XF_INLINE void sums_of_turns(Sums&, const W&) {}

}  // namespace xeflash::cpu
