// Matrix products of the CPU backend, and the softmax between them. Products are computed in
// register tiles, by FMA or vdpbf16ps.
#pragma once

#include "cpu/right.hpp"

namespace xeflash::cpu {

// The register tile has accumulators for Rt vectors of rows times `keys` of N columns of S, or
// times `dims` columns of O, within 32 zmm or 16 ymm registers.
template <int R, int N = 12>
struct RegisterTile {
  static constexpr int Rt = kTogether<R>;
  static constexpr int keys = !kHasAvx512 || Rt == 4 ? kKeyTile<N> / 2 : kKeyTile<N>;
  static constexpr int dims = !kHasAvx512 || Rt == 4 ? 6 : 8;
};

// P = 2^(X - kExp2Headroom) in the type of V, as the left operand of P V; l += row sums of P before
// it is rounded.
template <int Degree, class T, int R, int C>
XF_INLINE void exp2_and_sum(Left<T, R, C>& P, const LogProbs<Tile<R, C>, ColVec<R>>& X,
                            ColVec<R>& l) {
  const auto& S = X.S;
  const auto power = [&](f32x16 s, int r) __attribute__((always_inline)) {
    return exp2<Degree, kExp2Headroom, true>(fma(s, X.scale, -X.m.x[r]));  // P <= 2^kSlack
  };
  for (int r0 = 0; r0 < R / kLanes; r0 += kTogether<R>) {
    f32x16 sum_even[kTogether<R>] = {}, sum_odd[kTogether<R>] = {};
    for (int c = 0; c < S.cols; c += 2) {
      XF_UNROLL for (int r = 0; r < kTogether<R>; ++r) {
        const f32x16 even = power(S.at(c, r0 + r), r0 + r),
                     odd = power(S.at(c + 1, r0 + r), r0 + r);
        sum_even[r] += even;
        sum_odd[r] += odd;
        if constexpr (kPaired<T>) {
          P.at(c / 2, r0 + r) = pack_pairs(even, odd);
        } else {
          P.at(c, r0 + r) = even;
          P.at(c + 1, r0 + r) = odd;
        }
      }
    }
    XF_UNROLL for (int r = 0; r < kTogether<R>; ++r) l.x[r0 + r] += sum_even[r] + sum_odd[r];
  }
}

XF_INLINE f32x16 multiply_add(f32x16 acc, float b, f32x16 a) { return fma(a, b, acc); }
XF_INLINE f32x16 multiply_add(f32x16 acc, uint32_t b, u32x16 a) {
  return dot_pairs(acc, u32x16(b), a);
}

// Returns what step d of a product along a row multiplies: element d, or pair d.
template <class T, class E>
XF_INLINE auto element(const E* row, int d) {
  if constexpr (kPaired<T>) {
    return load_as<uint32_t>(row + 2 * d);
  } else {
    return row[d];
  }
}

// The largest number of steps that are summed in fp32 before the sum is added to the total. Summing
// in two levels keeps rounding errors small relative to the result. The number is the same in all
// passes, as gradients need the scores of the forward pass to the last bit.
template <class T, int D>
constexpr int kChain = (kPaired<T> ? D / 2 : D) > 64 ? 64 : 32;

// S = A K^T for the rows that K has. The outermost loop is over rows and the next one over chains,
// so that S and A of the rows of a register tile stay in L1.
template <class T, int R, int N, int D, class Block, int Begin, class Seen = AllColumns>
XF_INLINE void mma_ABt(Tile<R, N>& S, const Left<T, R, D>& A,
                       const RightT<T, N, D, Block, Begin>& K, const Seen& seen = {}) {
  using Reg = RegisterTile<R, N>;
  static_assert(N % Reg::keys == 0, "the key block must be a multiple of the register tile");
  constexpr int kSteps = kPaired<T> ? D / 2 : D, kMost = kChain<T, D>;
  constexpr bool kWholeChains = kSteps > 0 && kSteps % kMost == 0;  // one column has no pair
  S.cols = K.rows() < N ? round_up(K.rows(), Reg::keys) : N;
  for (int r0 = 0; r0 < R / kLanes; r0 += Reg::Rt) {
    const int cols = seen.of(r0, S.cols);
    for (int d0 = 0; d0 == 0 || d0 < kSteps; d0 += kMost) {
      const int end = kWholeChains || d0 + kMost < kSteps ? d0 + kMost : kSteps;
      for (int j = 0; j < cols; j += Reg::keys) {
        decltype(K.row(0)) k[Reg::keys];
        XF_UNROLL for (int n = 0; n < Reg::keys; ++n) k[n] = K.row(j + n);
        f32x16 acc[Reg::keys][Reg::Rt] = {};
        auto step = [&](int d, auto b_of) __attribute__((always_inline)) {
          XF_UNROLL for (int n = 0; n < Reg::keys; ++n) {
            const auto b = b_of(k[n]);
            XF_UNROLL for (int r = 0; r < Reg::Rt; ++r) {
              acc[n][r] = multiply_add(acc[n][r], b, A.at(d, r0 + r));
            }
          }
        };
        XF_UNROLL_SOME for (int d = d0; d < end; ++d) {
          step(d, [&](auto* row) { return element<T>(row, d); });
        }
        if constexpr (kPaired<T> && D % 2) {
          if (end == kSteps) step(D / 2, [](auto* row) { return uint32_t{row[D - 1].bits}; });
        }
        XF_UNROLL for (int n = 0; n < Reg::keys; ++n) {
          XF_UNROLL for (int r = 0; r < Reg::Rt; ++r) {
            f32x16& s = S.at(j + n, r0 + r);
            s = d0 == 0 ? acc[n][r] : s + acc[n][r];
          }
        }
      }
    }
  }
}

XF_INLINE f32x16 multiply_add(f32x16 acc, f32x16 b, f32x16 a) { return fma(a, b, acc); }
XF_INLINE f32x16 multiply_add(f32x16 acc, u32x16 b, u32x16 a) { return dot_pairs(acc, b, a); }

// Returns the dot product of each row of A with the same row of B, in the order of mma_ABt. So
// Delta of a row that sees one key equals that key's dP to the last bit.
template <int R, int D, class RowsA, class RowsB>
XF_INLINE ColVec<R> row_dots(const RowsA& A, const RowsB& B) {
  using T = std::remove_cvref_t<decltype(*A.row(0))>;
  constexpr int kSteps = kPaired<T> ? (D + 1) / 2 : D, kMost = kChain<T, D>;
  Left<T, R, D> a, b;
  load(a, A);
  load(b, B);
  ColVec<R> dots;
  for (int r = 0; r < R / kLanes; ++r) {
    for (int d0 = 0; d0 < kSteps; d0 += kMost) {
      f32x16 sum = {};
      for (int d = d0; d < d0 + kMost && d < kSteps; ++d) {
        sum = multiply_add(sum, b.at(d, r), a.at(d, r));
      }
      dots.x[r] = d0 == 0 ? sum : dots.x[r] + sum;
    }
  }
  return dots;
}

// Runs `steps` steps of a product's register tile, with operands made from `seed`; returns a value
// that depends on all of them.
template <class T>
XF_INLINE float multiply_in_registers(int steps, float seed) {
  using Reg = RegisterTile<64>;
  using A = std::conditional_t<kPaired<T>, u32x16, f32x16>;
  using B = std::conditional_t<kPaired<T>, uint32_t, float>;
  f32x16 acc[Reg::keys][Reg::Rt] = {};
  A a[Reg::Rt];
  XF_UNROLL for (int r = 0; r < Reg::Rt; ++r) a[r] = bit_cast<A>(f32x16(seed + r));
  B b[Reg::keys];
  XF_UNROLL for (int n = 0; n < Reg::keys; ++n) b[n] = bit_cast<B>(seed - n);
  XF_NO_UNROLL for (int i = 0; i < steps; ++i) {
    XF_UNROLL for (int n = 0; n < Reg::keys; ++n) {
      XF_UNROLL for (int r = 0; r < Reg::Rt; ++r) acc[n][r] = multiply_add(acc[n][r], b[n], a[r]);
    }
  }
  f32x16 sum = {};
  XF_UNROLL for (int n = 0; n < Reg::keys; ++n) {
    XF_UNROLL for (int r = 0; r < Reg::Rt; ++r) sum += acc[n][r];
  }
  return reduce_add(sum);
}

// O[:, d .. d + Nt) += P V[:, d .. d + Nt)
template <int Nt, class T, int R, int N, int D, class Block, int Begin>
XF_INLINE void mma_AB_columns(Tile<R, D>& O, const Left<T, R, N>& P,
                              const Right<T, N, D, Block, Begin>& V, int r0, int d, int steps) {
  constexpr int Rt = RegisterTile<R>::Rt;
  f32x16 acc[Nt][Rt] = {};
  const auto* v = V.first() + d;  // advances by addition: computed from j, it takes multiplications
  const auto* p = &P.at(0, r0);
  XF_UNROLL_SOME for (int j = 0; j < steps; ++j, v += V.stride, p += Rt) {
    XF_UNROLL for (int n = 0; n < Nt; ++n) {
      XF_UNROLL for (int r = 0; r < Rt; ++r) acc[n][r] = multiply_add(acc[n][r], v[n], p[r]);
    }
  }
  XF_UNROLL for (int n = 0; n < Nt; ++n) {
    XF_UNROLL for (int r = 0; r < Rt; ++r) O.at(d + n, r0 + r) += acc[n][r];
  }
}

// O += P V
template <class T, int R, int N, int D, class Block, int Begin, class Seen = AllColumns>
XF_INLINE void mma_AB(Tile<R, D>& O, const Left<T, R, N>& P, const Right<T, N, D, Block, Begin>& V,
                      const Seen& seen = {}) {
  using Reg = RegisterTile<R>;
  constexpr int kRest = D % Reg::dims, kKeys = kPaired<T> ? 2 : 1;  // kKeys: of a step
  for (int r0 = 0; r0 < R / kLanes; r0 += Reg::Rt) {  // rows outside: those of P stay in L1
    const int steps = (seen.of(r0, kKeys * V.steps()) + kKeys - 1) / kKeys;
    for (int d = 0; d < D - kRest; d += Reg::dims) {
      mma_AB_columns<Reg::dims>(O, P, V, r0, d, steps);
    }
    if constexpr (kRest) mma_AB_columns<kRest>(O, P, V, r0, D - kRest, steps);
  }
}

}  // namespace xeflash::cpu
