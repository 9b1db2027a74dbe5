// 2D block messages: each instruction moves a block of a matrix. Loads read zeros outside the
// matrix, and stores write nothing there.
#pragma once

#include "xe/rows.hpp"

namespace xeflash::xe {

// The description of a matrix for the messages. The hardware requires
//   base    a multiple of 64 bytes
//   pitch   >= 64 bytes, >= width, a multiple of 16; <= 2^24, and so is the number of rows
//   width   >= 64 bytes, a multiple of 4
// A matrix that begins elsewhere is described from up to 3 rows before it on, if such a row begins
// at a multiple of 64 bytes; those rows are never touched. Otherwise it is described from a few
// bytes before it, which lengthens the width. The host chooses another Access where neither fits
// (access.cpp).
struct Surface {
  uint64_t base;
  uint32_t width, height, pitch;  // in bytes, rows, bytes; each minus 1
  int x, y;                       // of the first element, in bytes and rows
};

template <int D, class T>
XF_INLINE Surface surface(const Rows<T>& m) {
  const uint64_t address = reinterpret_cast<uint64_t>(m.data);
  const uint32_t pitch = static_cast<uint32_t>(m.stride) * sizeof(T);
  const uint32_t bytes = (m.width < D ? m.width : D) * sizeof(T);
  const uint32_t width = D * sizeof(T) < 64 ? 64 : bytes;  // the columns beyond D are not used
  const uint32_t low = static_cast<uint32_t>(address) % 64;
  uint32_t up = 0;
  XF_UNROLL for (uint32_t rows = 3; rows > 0; --rows) {
    if (rows * pitch % 64 == low) up = rows;
  }
  if (low == 0) up = 0;
  const uint32_t x = up ? 0 : low;
  return {address - up * pitch - x, x + width - 1,
          m.count + up - 1u,        pitch - 1,
          static_cast<int>(x),      m.first + static_cast<int>(up)};
}

// A whole row of at least 64 bytes, as a matrix of one row.
template <class T>
XF_INLINE Surface surface(const Line<T>& line) {
  const uint64_t address = reinterpret_cast<uint64_t>(line.row);
  const uint32_t x = static_cast<uint32_t>(address) % 64;
  const uint32_t width = x + static_cast<uint32_t>(line.length) * sizeof(T);
  return {address - x, width - 1, 0, (width + 15) / 16 * 16 - 1, static_cast<int>(x), 0};
}

// A message for `Blocks` blocks of W x H elements, side by side. Its payload stays in a register;
// only x and y change.
template <class Element, int W, int H, int Blocks = 1>
struct BlockMessage {
  using T = Raw<Element>;
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
  XF_INLINE void prefetch() { esimdx::lsc_prefetch_2d<T, W, H, Blocks>(payload); }
  XF_INLINE auto load_transposed() { return load<true, false>(); }
  XF_INLINE auto load_vnni() { return load<false, true>(); }
  XF_INLINE void store(simd<T, W * H> values) { esimdx::lsc_store_2d<T, W, H>(payload, values); }
};

}  // namespace xeflash::xe
