// Whole algorithms on dpas: a matrix product and a forward pass of attention, a thread for eight
// rows. pvc and bmg load 2D blocks, dg2 rows and gathers.
#include "esimd.hpp"

constexpr int N = XE_LANES;
constexpr int K = 16;  // depth of a dpas on bf16

#if XE_LANES == 16
// Rows y .. y + 7, columns x .. x + 15: the left operand.
ESIMD_INLINE simd<bf16, 8 * K> load_rows(const bf16* p, int rows, int columns, int x, int y) {
  const uint32_t width = 2 * columns - 1;
  return xesimd::lsc_load_2d<bf16, K, 8>(p, width, rows - 1, width, x, y);
}
// Rows y .. y + 15, columns x .. x + N - 1 in pairs of rows: the right operand.
ESIMD_INLINE simd<bf16, K * N> load_pairs(const bf16* p, int rows, int columns, int x, int y) {
  const uint32_t width = 2 * columns - 1;
  return xesimd::lsc_load_2d<bf16, N, K, 1, false, true>(p, width, rows - 1, width, x, y);
}
// The right operand out of rows y .. y + N - 1, columns x .. x + 15 of its transpose.
ESIMD_INLINE simd<bf16, K * N> load_transposed(const bf16* p, int rows, int columns, int x, int y) {
  const uint32_t width = 2 * columns - 1;
  simd<uint32_t, K / 2 * N> v = xesimd::lsc_load_2d<uint32_t, K / 2, N, 1, true>(
      reinterpret_cast<const uint32_t*>(p), width, rows - 1, width, x / 2, y);
  return v.bit_cast_view<bf16>().read();
}
#else
ESIMD_INLINE simd<bf16, 8 * K> load_rows(const bf16* p, int rows, int columns, int x, int y) {
  simd<uint16_t, 8 * K> v = 0;
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    if (y + r < rows) v.select<K, 1>(r * K) = load<uint16_t, K>(p + (y + r) * columns + x);
  }
  return v.bit_cast_view<bf16>().read();
}
ESIMD_INLINE simd<bf16, K * N> load_pairs(const bf16* p, int rows, int columns, int x, int y) {
  simd<uint16_t, K * N> v = 0;
#pragma unroll
  for (int r = 0; r < K; ++r) {
    if (y + r < rows)
      v.select<N, 2>(r / 2 * 2 * N + r % 2) = load<uint16_t, N>(p + (y + r) * columns + x);
  }
  return v.bit_cast_view<bf16>().read();
}
ESIMD_INLINE simd<bf16, K * N> load_transposed(const bf16* p, int rows, int columns, int x, int y) {
  const simd<uint32_t, N> row(y, 1);
  const simd_mask<N> inside = row < uint32_t(rows);
  simd<uint32_t, K / 2 * N> v;
#pragma unroll
  for (int k = 0; k < K / 2; ++k) {
    const simd<uint32_t, N> at = row * uint32_t(2 * columns) + uint32_t(2 * x + 4 * k);
    v.select<N, 1>(k * N) = esimd::gather<uint32_t, N>(reinterpret_cast<const uint32_t*>(p), at,
                                                       inside, simd<uint32_t, N>(0));
  }
  return v.bit_cast_view<bf16>().read();
}
#endif

// C = A B: A is m x k, B is k x n, C is m x n floats; m is a multiple of 8, n of N.
XE_KERNEL gemm(const bf16* A, const bf16* B, float* C, int m, int n, int k) {
  const int y = item().get_global_linear_id() * 8;
  for (int x = 0; x < n; x += N) {
    simd<float, 8 * N> c = 0.f;
    for (int i = 0; i < k; i += K) {
      c = xmx::dpas<8, 8, float>(c, load_pairs(B, k, n, x, i), load_rows(A, m, k, i, y));
    }
#pragma unroll
    for (int r = 0; r < 8; ++r) store<float, N>(C + (y + r) * n + x, c.select<N, 1>(r * N).read());
  }
}

// O = softmax(scale Q K^T) V: FlashAttention-2, Algorithm 1, 32 columns, 16 keys a step.
XE_KERNEL attention(const bf16* Q, const bf16* keys, const bf16* V, float* O, int queries,
                    int length, float scale) {
  constexpr int D = 32, Bc = 16;
  const int y = item().get_global_linear_id() * 8;
  const float scale_log2 = scale * 1.44269504f;
  simd<bf16, 8 * K> q[D / K];
#pragma unroll
  for (int d = 0; d < D / K; ++d) q[d] = load_rows(Q, queries, D, d * K, y);
  simd<float, 8 * N> o[D / N];
#pragma unroll
  for (int d = 0; d < D / N; ++d) o[d] = 0.f;
  simd<float, 8> m = -1e30f, l = 0.f;
  for (int j = 0; j < length; j += Bc) {
    simd<float, 8 * Bc> s;
#pragma unroll
    for (int part = 0; part < Bc / N; ++part) {
      simd<float, 8 * N> sum = 0.f;
#pragma unroll
      for (int d = 0; d < D / K; ++d) {
        sum = xmx::dpas<8, 8, float>(sum, load_transposed(keys, length, D, d * K, j + part * N),
                                     q[d]);
      }
#pragma unroll
      for (int r = 0; r < 8; ++r)
        s.select<N, 1>(r * Bc + part * N) = sum.select<N, 1>(r * N) * scale_log2;
    }
    const simd<int, Bc> key(j, 1);
    const simd_mask<Bc> hidden = key >= length;
    simd<float, 8> m_new;
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      simd<float, Bc> row = s.select<Bc, 1>(r * Bc);
      row.merge(simd<float, Bc>(-1e30f), hidden);
      s.select<Bc, 1>(r * Bc) = row;
      m_new[r] = esimd::hmax<float>(row);
    }
    m_new = esimd::max<float>(m_new, m);
    const simd<float, 8> alpha = esimd::exp2(m - m_new);
    m = m_new;
    l *= alpha;
    simd<bf16, 8 * Bc> p;
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const simd<float, Bc> shifted = s.select<Bc, 1>(r * Bc) - float(m[r]);
      const simd<float, Bc> e = esimd::exp2(shifted);
      l[r] += esimd::reduce<float>(e, std::plus<>());
      p.select<Bc, 1>(r * Bc) = esimd::convert<bf16>(e);
#pragma unroll
      for (int d = 0; d < D / N; ++d) o[d].template select<N, 1>(r * N) *= float(alpha[r]);
    }
#pragma unroll
    for (int d = 0; d < D / N; ++d)
      o[d] = xmx::dpas<8, 8, float>(o[d], load_pairs(V, length, D, d * N, j), p);
  }
  const simd<float, 8> inverse = esimd::inv(l);
#pragma unroll
  for (int r = 0; r < 8; ++r) {
#pragma unroll
    for (int d = 0; d < D / N; ++d) {
      const simd<float, N> row = o[d].template select<N, 1>(r * N) * float(inverse[r]);
      if (y + r < queries) store<float, N>(O + (y + r) * D + d * N, row);
    }
  }
}
