// Gathers and scatters of every width, count of lanes and vector length; blocks of every size.
#include "esimd.hpp"

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;

using sycl::ext::oneapi::experimental::properties;
constexpr properties kCached{esimd::cache_hint_L1<esimd::cache_hint::cached>,
                             esimd::cache_hint_L2<esimd::cache_hint::cached>};
constexpr properties kWriteBack{esimd::cache_hint_L1<esimd::cache_hint::write_back>,
                                esimd::cache_hint_L2<esimd::cache_hint::write_back>};

// Lanes whose bit of `lanes` is set: to[i] = from[i] at their offsets; `seen` gets what the gather
// gave, 77 in lanes that are off.
template <class T, class Offset, int kLanes, int kVector, bool kHints>
ESIMD_INLINE void move_lanes(const T* from, T* to, const Offset* offsets, T* seen, uint32_t lanes) {
  constexpr int n = kLanes * kVector;
  simd<Offset, kLanes> at;
  simd<uint32_t, kLanes> bits;
  for (int i = 0; i < kLanes; ++i) {
    at[i] = offsets[i];
    bits[i] = lanes >> i & 1;
  }
  const simd_mask<kLanes> on = bits != 0u;
  const simd<T, n> rest = T(77);
  simd<T, n> v;
  if constexpr (kHints) {
    v = esimd::gather<T, n, kVector>(from, at, on, rest, kCached);
    esimd::scatter<T, n, kVector>(to, at, v, on, kWriteBack);
  } else {
    v = esimd::gather<T, n, kVector>(from, at, on, rest);
    esimd::scatter<T, n, kVector>(to, at, v, on);
  }
  for (int i = 0; i < n; ++i) seen[i] = v[i];
}

#define LANES(T, OFFSET, N, VECTOR, HINTS)                                    \
  XE_KERNEL lanes_##T##_##OFFSET##_##N##_##VECTOR##_##HINTS(                  \
      const T* from, T* to, const OFFSET* offsets, T* seen, uint32_t lanes) { \
    move_lanes<T, OFFSET, N, VECTOR, HINTS>(from, to, offsets, seen, lanes);  \
  }

LANES(u8, u32, 1, 1, 0)
LANES(u8, u32, 8, 1, 0)
LANES(u8, u32, 16, 1, 0)
LANES(u8, u32, 32, 1, 1)
LANES(u8, u64, 16, 1, 1)
LANES(u16, u32, 2, 1, 0)
LANES(u16, u32, 16, 1, 0)
LANES(u16, u32, 32, 1, 1)
LANES(u16, u64, 8, 1, 1)
LANES(u32, u32, 1, 1, 0)
LANES(u32, u32, 4, 1, 0)
LANES(u32, u32, 16, 1, 0)
LANES(u32, u32, 32, 1, 0)
LANES(u32, u32, 1, 1, 1)
LANES(u32, u32, 16, 1, 1)
LANES(u32, u64, 32, 1, 1)
LANES(u32, u32, 16, 2, 1)
LANES(u32, u32, 16, 3, 1)
LANES(u32, u64, 16, 4, 1)
LANES(u32, u32, 32, 4, 1)
LANES(u32, u32, 8, 2, 1)
LANES(u64, u32, 8, 1, 0)
LANES(u64, u32, 16, 1, 0)
LANES(u64, u32, 16, 1, 1)
LANES(u64, u32, 32, 1, 1)
LANES(u64, u32, 16, 2, 1)
LANES(u64, u64, 8, 4, 1)

// Blocks of kFirst, ... elements one after the other.
template <class T, int... kSizes>
ESIMD_INLINE void copy_blocks(const T* from, T* to) {
  int at = 0;
  const auto one = [&]<int n>() {
    constexpr properties kAligned{esimd::alignment<8>};
    const simd<T, n> v = esimd::block_load<T, n>(from + at, kAligned);
    esimd::block_store<T, n>(to + at, v, kAligned);
    at += (n * sizeof(T) + 15) / 16 * 16 / sizeof(T);
  };
  (one.template operator()<kSizes>(), ...);
}
template <class T, int... kSizes>
ESIMD_INLINE void copy_cached_blocks(const T* from, T* to) {
  int at = 0;
  const auto one = [&]<int n>() {
    esimd::prefetch<T, n>(from + at, kCached);
    const simd<T, n> v = esimd::block_load<T, n>(from + at, kCached);
    esimd::block_store<T, n>(to + at, v, kWriteBack);
    at += (n * sizeof(T) + 15) / 16 * 16 / sizeof(T);
  };
  (one.template operator()<kSizes>(), ...);
}
XE_KERNEL blocks_u8(const u8* from, u8* to) {
  copy_blocks<u8, 4, 8, 12, 16, 32, 64, 256>(from, to);
}
XE_KERNEL blocks_u16(const u16* from, u16* to) {
  copy_blocks<u16, 2, 4, 6, 8, 16, 32, 64, 128>(from, to);
}
XE_KERNEL blocks_u32(const u32* from, u32* to) {
  copy_blocks<u32, 1, 2, 3, 4, 8, 16, 32, 64, 128>(from, to);
}
XE_KERNEL blocks_u64(const u64* from, u64* to) {
  copy_blocks<u64, 1, 2, 3, 4, 8, 16, 32, 64>(from, to);
}
XE_KERNEL cached_blocks_u32(const u32* from, u32* to) {
  copy_cached_blocks<u32, 1, 2, 3, 4, 8, 16, 32, 64>(from, to);
}
#if XE_LANES == 8  // 256 bytes a message
XE_KERNEL cached_blocks_u64(const u64* from, u64* to) {
  copy_cached_blocks<u64, 1, 2, 3, 4, 8, 16, 32>(from, to);
}
#else
XE_KERNEL cached_blocks_u64(const u64* from, u64* to) {
  copy_cached_blocks<u64, 1, 2, 3, 4, 8, 16, 32, 64>(from, to);
}
#endif

// Prefetches of what is not there do nothing.
XE_KERNEL prefetches(const u32* from, u32* to) {
  const simd<uint32_t, 16> offsets(0, 4096);
  esimd::prefetch<u32, 16>(from, offsets, kCached);
  esimd::prefetch<u32, 64>(from + (1 << 20), kCached);
  to[0] = from[0];
}
