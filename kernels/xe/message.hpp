// 2D block messages: a block of a matrix in memory per instruction, zero outside the matrix on
// loads, nothing written there on stores.
#pragma once

#include "xe/vec.hpp"

namespace xeflash::xe {

// What the messages are told about a matrix. The hardware wants
//   base    a multiple of 64 bytes: the rest of an address is folded into x, if a multiple of 4
//   pitch   >= 64 bytes, >= width, a multiple of 16: the caller's duty. It fails for odd strides,
//           for D < 32 in one head, and for one head at an address that needed the folding
//   width   >= 64 bytes, a multiple of 4; blocks of 16 columns never pass D while D % 16 == 0
struct Surface {
  uint64_t base;
  uint32_t width, height, pitch;  // minus 1; bytes, rows, bytes
  int x, y;                       // of the first element: bytes, rows
};

// Rows of a matrix in memory: `count` of them, `stride` elements apart, the elements of a row
// contiguous. A view `from` a later row keeps base and count, so only y of its messages changes.
template <class T>
struct Rows {
  T* data;
  int64_t stride;
  int count;
  int first = 0;

  XF_INLINE Rows from(int row) const { return {data, stride, count, first + row}; }
  XF_INLINE Rows up_to(int end) const { return {data, stride, end, first}; }

  template <int D>
  XF_INLINE Surface surface() const {
    const uint64_t address = reinterpret_cast<uint64_t>(data);
    const uint32_t x = address % 64, width = D < 32 ? 64 : D * sizeof(T);
    const uint32_t pitch = static_cast<uint32_t>(stride) * sizeof(T);
    return {address - x, x + width - 1, count - 1u, pitch - 1, static_cast<int>(x), first};
  }
};

// Blocks of W x H elements, `Blocks` side by side. The payload stays in its register; only x and y
// change.
template <class T, int W, int H, int Blocks = 1>
struct BlockMessage {
  esimdx::config_2d_mem_access<T, W, H, Blocks> payload;
  int x0, y0;

  XF_INLINE explicit BlockMessage(const Surface& s)
      : payload(reinterpret_cast<const T*>(s.base), s.width, s.height, s.pitch, 0, s.y),
        x0(s.x / static_cast<int>(sizeof(T))),
        y0(s.y) {
    move_x(0);
  }

  XF_INLINE void move_x(int x) { payload.set_x(x0 + x); }
  XF_INLINE void move_y(int y) { payload.set_y(y0 + y); }

  template <bool Transposed = false, bool Vnni = false>
  XF_INLINE auto load() {
    return esimdx::lsc_load_2d<T, W, H, Blocks, Transposed, Vnni>(payload);
  }
  XF_INLINE auto load_transposed() { return load<true, false>(); }
  XF_INLINE auto load_vnni() { return load<false, true>(); }
  XF_INLINE void store(simd<T, W * H> values) { esimdx::lsc_store_2d<T, W, H>(payload, values); }
};

}  // namespace xeflash::xe
