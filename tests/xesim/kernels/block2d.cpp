// 2D blocks: one kernel for each shape. The surface comes from the arguments, in bytes and rows; so
// do x and y.
#include "esimd.hpp"

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;

#define SURFACE uint32_t width, uint32_t height, uint32_t pitch, int x, int y
#define NO_HINTS xesimd::cache_hint::none, xesimd::cache_hint::none

// The header's functions take the count of elements only here; it leaves out the padding of rows.
template <class T, int kWidth, int kHeight, int kBlocks, bool kTransposed, bool kVnni>
ESIMD_INLINE void load_block(const T* p, T* out, SURFACE) {
  constexpr int k = kVnni ? 4 / sizeof(T) : 1;
  constexpr int kCount = kWidth * ((kHeight + k - 1) / k * k) * kBlocks;
  using Hints = sycl::ext::oneapi::experimental::empty_properties_t;
  const simd<T, kCount> v =
      esimd::detail::load_2d_impl<T, kWidth, kHeight, kBlocks, kTransposed, kVnni, Hints, kCount>(
          p, width - 1, height - 1, pitch - 1, x, y);
  store<T, kCount>(out, v);
}

#define PLAIN(T, W, H, B)                                                     \
  XE_KERNEL plain_##T##_##W##x##H##x##B(const T* p, T* out, SURFACE) {        \
    load_block<T, W, H, B, false, false>(p, out, width, height, pitch, x, y); \
  }
#define VNNI(T, W, H, B)                                                     \
  XE_KERNEL vnni_##T##_##W##x##H##x##B(const T* p, T* out, SURFACE) {        \
    load_block<T, W, H, B, false, true>(p, out, width, height, pitch, x, y); \
  }
#define TRANSPOSED(T, W, H)                                                  \
  XE_KERNEL transposed_##T##_##W##x##H##x1(const T* p, T* out, SURFACE) {    \
    load_block<T, W, H, 1, true, false>(p, out, width, height, pitch, x, y); \
  }
#define STORE(T, W, H)                                                           \
  XE_KERNEL store_##T##_##W##x##H##x1(T* p, const T* in, SURFACE) {              \
    const simd<T, W * H> v = load<T, W * H>(in);                                 \
    xesimd::lsc_store_2d<T, W, H>(p, width - 1, height - 1, pitch - 1, x, y, v); \
  }
#define PREFETCH(T, W, H, B)                                                                     \
  XE_KERNEL prefetch_##T##_##W##x##H##x##B(const T* p, SURFACE) {                                \
    xesimd::lsc_prefetch_2d<T, W, H, B, xesimd::cache_hint::cached, xesimd::cache_hint::cached>( \
        p, width - 1, height - 1, pitch - 1, x, y);                                              \
  }

PLAIN(u8, 64, 32, 1)
PLAIN(u8, 16, 32, 4)
PLAIN(u8, 32, 4, 2)
PLAIN(u8, 12, 5, 1)
PLAIN(u8, 4, 1, 1)
PLAIN(u16, 32, 8, 1)
PLAIN(u16, 16, 16, 2)
PLAIN(u16, 8, 32, 4)
PLAIN(u16, 6, 7, 1)
PLAIN(u16, 2, 1, 1)
PLAIN(u32, 16, 16, 1)
PLAIN(u32, 8, 32, 2)
PLAIN(u32, 3, 5, 1)
PLAIN(u32, 1, 1, 1)
PLAIN(u64, 8, 32, 1)
PLAIN(u64, 3, 5, 1)
PLAIN(u64, 1, 1, 1)
VNNI(u8, 16, 32, 4)
VNNI(u8, 16, 32, 2)
VNNI(u8, 8, 6, 1)
VNNI(u8, 4, 4, 1)
VNNI(u16, 16, 32, 1)
VNNI(u16, 16, 16, 2)
VNNI(u16, 8, 16, 4)
VNNI(u16, 16, 5, 1)
VNNI(u16, 6, 4, 1)
VNNI(u16, 2, 2, 1)
TRANSPOSED(u32, 8, 32)
TRANSPOSED(u32, 8, 16)
TRANSPOSED(u32, 3, 5)
TRANSPOSED(u32, 1, 8)
TRANSPOSED(u64, 4, 8)
TRANSPOSED(u64, 2, 8)
TRANSPOSED(u64, 1, 8)
STORE(u8, 64, 8)
STORE(u8, 12, 3)
STORE(u8, 4, 1)
STORE(u16, 32, 8)
STORE(u16, 16, 8)
STORE(u16, 6, 7)
STORE(u32, 16, 8)
STORE(u32, 3, 5)
STORE(u32, 1, 1)
STORE(u64, 8, 8)
STORE(u64, 1, 1)
PREFETCH(u8, 64, 32, 1)
PREFETCH(u16, 16, 16, 2)
PREFETCH(u32, 8, 8, 1)
PREFETCH(u64, 8, 4, 1)

// Constant distances between blocks: Xe2's messages may carry them.
XE_KERNEL neighbours(const u16* p, u16* out, SURFACE) {
  xesimd::config_2d_mem_access<u16, 16, 8, 1> block(p, width - 1, height - 1, pitch - 1, x, y);
  store<u16, 128>(out, xesimd::lsc_load_2d<u16, 16, 8, 1, false, false, NO_HINTS, 128>(block));
  block.set_x(x + 16);
  store<u16, 128>(out + 128,
                  xesimd::lsc_load_2d<u16, 16, 8, 1, false, false, NO_HINTS, 128>(block));
  block.set_y(y - 8);
  store<u16, 128>(out + 256,
                  xesimd::lsc_load_2d<u16, 16, 8, 1, false, false, NO_HINTS, 128>(block));
  load_block<u16, 16, 8, 1, false, false>(p, out + 384, width, height, pitch, x + 32, y + 24);
  load_block<u16, 16, 8, 1, false, false>(p, out + 512, width, height, pitch, x - 64, y - 16);
}
