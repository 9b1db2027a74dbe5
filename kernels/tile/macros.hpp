// Every function is inlined into its kernel, and loops over tiles of known size are unrolled.
#pragma once

#define XF_INLINE inline __attribute__((always_inline))
#define XF_UNROLL _Pragma("unroll")
