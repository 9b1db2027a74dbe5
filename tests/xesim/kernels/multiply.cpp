// D = C + A B and D = A B on one dpas.
#include "esimd.hpp"

constexpr int N = XE_LANES;

XE_KERNEL multiply(const bf16* a, const bf16* b, const float* c, float* d) {
  const auto A = load<bf16, 8 * 16>(a);
  const auto B = load<bf16, 16 * N>(b);
  const simd<float, 8 * N> C = load<float, 8 * N>(c);
  simd<float, 8 * N> D = xmx::dpas<8, 8, float>(C, B, A);
  store<float, 8 * N>(d, D);
}
XE_KERNEL product(const bf16* a, const bf16* b, float* d) {
  const auto A = load<bf16, 8 * 16>(a);
  const auto B = load<bf16, 16 * N>(b);
  simd<float, 8 * N> D = xmx::dpas<8, 8, float>(B, A);
  store<float, 8 * N>(d, D);
}
