// The window of scores whose lanes are queries, so that what is asked of a key alone is a scalar.
#include "choices.hpp"
// The choices come before the headers that they are for.
#include "attention/mask.hpp"

namespace xeflash {

constexpr int kKeys = 16;

XF_INLINE void hide(const float* in, float* out, int sq, int sk, int left, int right) {
  FwdParams p{};
  p.max_q = sq;
  p.max_k = sk;
  p.left = left;
  p.right = right;
  const Window window(p, Sequence(p, 0));
  for (int key = 0; key < 2 * kKeys; key += kKeys) {
    Tile<kKeys, kLanes> S;
    XF_UNROLL for (int k = 0; k < kKeys; ++k) {
      S.row(k, 0) = esimd::block_load<float, kLanes>(in + (key + k) * kLanes);
    }
    each(S, key, 0, [&](auto s, auto k, auto q) { return window.hide(s, q, k); });
    XF_UNROLL for (int k = 0; k < kKeys; ++k) {
      esimd::block_store<float, kLanes>(out + (key + k) * kLanes, floats(S.row(k, 0)));
    }
  }
}

}  // namespace xeflash

XF_KERNEL void hide(const float* in, float* out, int sq, int sk, int left, int right) {
  xeflash::hide(in, out, sq, sk, left, right);
}
