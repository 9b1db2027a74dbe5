// Philox 4x32-10 (Salmon et al., 2011): counter-based random numbers. The same counter and key give
// the same words on every device, whatever was drawn before.
// Word: multiply_high  returns the upper 32 bits of a product
#pragma once

#include "tile/tile.hpp"

namespace xeflash {

// Replaces a counter by its 4 random words. U is a word or a vector of words.
template <class U>
XF_INLINE void philox(U (&c)[4], uint32_t key0, uint32_t key1) {
  XF_UNROLL for (int round = 0; round < 10; ++round) {
    const U hi0 = multiply_high(c[0], 0xD2511F53u), lo0 = c[0] * 0xD2511F53u;
    const U hi1 = multiply_high(c[2], 0xCD9E8D57u), lo1 = c[2] * 0xCD9E8D57u;
    c[0] = hi1 ^ c[1] ^ key0, c[1] = lo1, c[2] = hi0 ^ c[3] ^ key1, c[3] = lo0;
    key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
  }
}

}  // namespace xeflash
