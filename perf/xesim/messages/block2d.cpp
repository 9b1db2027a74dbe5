// 2D block messages: a rectangle of a surface in memory to registers, or back. What lies outside of
// the surface reads as zero and is not written.
#include <immintrin.h>

#include <algorithm>
#include <bit>

#include "messages/memory_access.hpp"

namespace xesim {
namespace {

struct Block2d {
  uint64_t base;
  int64_t width, height, pitch;  // bytes, rows, bytes
  int64_t x, y;                  // of the first element
  int columns, rows, blocks;
  int size;  // of an element
};

// The registers of a message: blocks of `block_bytes` of data, each starting in a new register.
struct Layout {
  int row_bytes;  // plain: from row to row; VNNI: of k interleaved rows; transposed: from column to
                  // column
  int block_bytes;
  int block_stride;
};

constexpr int kMaxBytes = 4096;  // more than any legal message, padding included

Block2d read_header(const Message& m) {
  if (!m.inst.src[0].exists()) unknown_message(m, "a message without addresses");
  if (m.op == LscOp::kStoreBlock2d && !m.inst.src[1].exists()) {
    unknown_message(m, "a store without data");
  }
  m.thread.require_defined(m.addresses, 32, "src0 (address)");
  const Thread& t = m.thread;
  const uint32_t at = m.addresses, shape = t.read<uint32_t>(at + 28);
  Block2d b;
  b.base = t.read<uint64_t>(at);
  b.width = int64_t{t.read<uint32_t>(at + 8)} + 1;
  b.height = int64_t{t.read<uint32_t>(at + 12)} + 1;
  b.pitch = int64_t{t.read<uint32_t>(at + 16)} + 1;
  b.x = int64_t{t.read<int32_t>(at + 20)} + m.offset_x;
  b.y = int64_t{t.read<int32_t>(at + 24)} + m.offset_y;
  b.columns = static_cast<int>(shape & 0xff) + 1;
  b.rows = static_cast<int>(shape >> 8 & 0xff) + 1;
  b.blocks = static_cast<int>(shape >> 16 & 0xf) + 1;
  b.size = m.memory_bytes;
  return b;
}

// The hardware's documented limits, from Intel's libraries for these devices (XeTLA's
// limitation.hpp, the ESIMD headers' static checks, Triton's verifier). What breaks them has no
// defined result.
void check_surface(const Message& m, const Block2d& b) {
  const auto rule = [](bool good, const char* name, int64_t value) {
    if (!good) fail("2D block: %s, got %lld", name, static_cast<long long>(value));
  };
  constexpr int64_t kLargest = 1 << 24;
  const int align = std::max(4, b.size);
  rule(b.base % 64 == 0, "the base address must be a multiple of 64 bytes; address modulo 64",
       static_cast<int64_t>(b.base % 64));
  rule(b.width <= kLargest, "the surface width must be at most 2^24 bytes", b.width);
  rule(b.width % align == 0,
       "the surface width must be a multiple of 4 bytes and of the element size", b.width);
  rule(b.height <= kLargest, "the surface height must be at most 2^24 rows", b.height);
  rule(b.pitch >= b.width, "the surface pitch must be at least the width; pitch - width",
       b.pitch - b.width);
  rule(b.pitch <= kLargest, "the surface pitch must be at most 2^24 bytes", b.pitch);
  if (m.isa().family == Family::kPvc) {
    rule(b.pitch % 8 == 0, "the surface pitch must be a multiple of 8 bytes", b.pitch);
  } else {
    rule(b.pitch % 16 == 0, "the surface pitch must be a multiple of 16 bytes", b.pitch);
  }
  if (b.size == 1) rule(b.x % 4 == 0, "x must be a multiple of 4 for 8-bit elements", b.x);
  if (b.size == 2) rule(b.x % 2 == 0, "x must be a multiple of 2 for 16-bit elements", b.x);
  if (b.size == 8 && m.transposed) {
    rule(b.x >= 0, "x must not be negative for transposed 64-bit elements", b.x);
  }
}

void check_shape(const Message& m, const Block2d& b) {
  const auto rule = [](bool good, const char* name, int value) {
    if (!good) fail("2D block: %s, got %d", name, value);
  };
  const bool store = m.op == LscOp::kStoreBlock2d;
  const int bytes = b.columns * b.size;
  rule(bytes % 4 == 0, "the block width must be a multiple of 4 bytes", bytes);
  rule(bytes * b.blocks <= 64, "width x blocks must be at most 64 bytes", bytes * b.blocks);
  if (store) {
    rule(b.blocks == 1, "a store has one block", b.blocks);
    rule(b.rows <= 8, "the block height of a store must be at most 8", b.rows);
    rule(bytes * b.rows <= 512, "a store must be at most 512 bytes", bytes * b.rows);
    return;
  }
  rule(b.rows <= 32, "the block height must be at most 32", b.rows);
  rule(bytes * b.rows * b.blocks <= 2048, "a load must be at most 2048 bytes",
       bytes * b.rows * b.blocks);
  rule(b.blocks <= std::min(4, 8 / b.size), "too many blocks for the element size", b.blocks);
  if (m.transposed) {
    rule(b.blocks == 1, "a transposed load has one block", b.blocks);
    if (b.size == 4) rule(b.columns <= 8, "a transposed 32-bit block is at most 8 wide", b.columns);
    if (b.size == 8) {
      rule(b.columns <= 4 && b.columns != 3, "a transposed 64-bit block is 1, 2 or 4 wide",
           b.columns);
      rule(b.rows == 8, "a transposed 64-bit block has 8 rows", b.rows);
    }
  }
  if (m.vnni) {
    const int least = 4 / b.size;
    rule(b.columns >= least && b.columns <= 16, "a VNNI block is 4 / size .. 16 wide", b.columns);
    rule(b.rows >= least, "a VNNI block has at least 4 / size rows", b.rows);
  }
}

Layout layout_of(const Message& m, const Block2d& b) {
  const auto power = [](int n) { return static_cast<int>(std::bit_ceil(unsigned(n))); };
  const int grf = m.isa().grf_bytes;
  Layout layout;
  if (m.transposed) {
    layout.row_bytes = power(b.rows) * b.size;
    layout.block_bytes = b.columns * layout.row_bytes;
  } else if (m.vnni) {
    const int k = 4 / b.size;
    layout.row_bytes = power(b.columns) * b.size * k;
    layout.block_bytes = (b.rows + k - 1) / k * layout.row_bytes;
  } else {
    layout.row_bytes = power(b.columns) * b.size;
    layout.block_bytes = b.rows * layout.row_bytes;
  }
  layout.block_stride = (layout.block_bytes + grf - 1) / grf * grf;
  return layout;
}

// The bytes [first, last) of a row of `bytes` bytes from x on that lie inside of the surface.
struct Clip {
  int first = 0, last = 0;
  uint32_t bytes() const { return static_cast<uint32_t>(last - first); }
};

// Calls row(y, address, clip) for every row that touches the surface; `address` is that of
// clip.first. The blocks of a message lie side by side, so a row runs through all of them.
template <class Row>
void for_rows(const Block2d& b, Row row) {
  const int64_t columns = int64_t{b.columns} * b.blocks, inside = b.width / b.size - b.x;
  const Clip clip{static_cast<int>(std::clamp<int64_t>(-b.x, 0, columns)) * b.size,
                  static_cast<int>(std::clamp<int64_t>(inside, 0, columns)) * b.size};
  if (clip.first >= clip.last) return;
  for (int y = 0; y < b.rows; ++y) {
    const int64_t line = b.y + y;
    if (line < 0 || line >= b.height) continue;
    row(y,
        b.base + static_cast<uint64_t>(line) * static_cast<uint64_t>(b.pitch) +
            static_cast<uint64_t>(b.x * b.size + clip.first),
        clip);
  }
}

// memcpy with the usual sizes inline.
void copy_row(uint8_t* to, const uint8_t* from, size_t bytes) {
  switch (bytes) {
    case 64:
      std::memcpy(to, from, 64);
      break;
    case 32:
      std::memcpy(to, from, 32);
      break;
    case 16:
      std::memcpy(to, from, 16);
      break;
    case 4:
      std::memcpy(to, from, 4);
      break;
    default:
      std::memcpy(to, from, bytes);
  }
}

// The three ways of one block from the tile (row y at tile + y * pitch) to its place in registers.
void place_plain(const uint8_t* tile, int pitch, const Block2d& b, const Layout& layout,
                 uint8_t* out) {
  const auto bytes = static_cast<size_t>(b.columns * b.size);
  for (int y = 0; y < b.rows; ++y) copy_row(out + y * layout.row_bytes, tile + y * pitch, bytes);
}

// k = 4 / size rows become one row of dwords.
template <int kSize>
void place_vnni(const uint8_t* tile, int pitch, const Block2d& b, const Layout& layout,
                uint8_t* out) {
  constexpr int k = 4 / kSize;
  for (int y = 0; y < b.rows; ++y) {
    const uint8_t* row = tile + y * pitch;
    uint8_t* line = out + y / k * layout.row_bytes + y % k * kSize;
    int x = 0;
    if constexpr (kSize == 2) {  // two rows, eight columns at a time
      if (y + 1 < b.rows) {
        for (; x + 8 <= b.columns; x += 8) {
          const auto even = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * x));
          const auto odd = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + pitch + 2 * x));
          auto* to = reinterpret_cast<__m128i*>(line + 4 * x);
          _mm_storeu_si128(to, _mm_unpacklo_epi16(even, odd));
          _mm_storeu_si128(to + 1, _mm_unpackhi_epi16(even, odd));
        }
        for (int left = x; left < b.columns; ++left) {
          std::memcpy(line + 4 * left + 2, row + pitch + 2 * left, 2);
        }
        ++y;
      }
    }
    for (; x < b.columns; ++x) std::memcpy(line + 4 * x, row + kSize * x, kSize);
  }
}

template <int kSize>
void place_transposed(const uint8_t* tile, int pitch, const Block2d& b, const Layout& layout,
                      uint8_t* out) {
  for (int x = 0; x < b.columns; ++x) {
    uint8_t* line = out + x * layout.row_bytes;
    for (int y = 0; y < b.rows; ++y) {
      std::memcpy(line + y * kSize, tile + y * pitch + x * kSize, kSize);
    }
  }
}

void load(const Message& m, const Block2d& b, MemoryAccess& memory) {
  const Layout layout = layout_of(m, b);
  const int total = b.blocks * layout.block_stride;
  const int pitch = b.columns * b.blocks * b.size;  // of the tile
  if (total > kMaxBytes || b.rows * pitch > kMaxBytes) fail("2D block: %d bytes", total);
  require_registers(m.dst, static_cast<uint64_t>(total));

  alignas(64) uint8_t tile[kMaxBytes], out[kMaxBytes];
  std::memset(tile, 0, static_cast<size_t>(b.rows * pitch));
  for_rows(b, [&](int y, uint64_t address, Clip clip) {
    copy_row(tile + y * pitch + clip.first, memory.reach(address, clip.bytes()), clip.bytes());
  });
  memory.tell();
  std::memset(out, 0, static_cast<size_t>(total));
  const auto place = m.vnni         ? (b.size == 1 ? place_vnni<1> : place_vnni<2>)
                     : m.transposed ? (b.size == 4 ? place_transposed<4> : place_transposed<8>)
                                    : place_plain;
  for (int block = 0; block < b.blocks; ++block) {
    place(tile + block * b.columns * b.size, pitch, b, layout, out + block * layout.block_stride);
  }
  // What a block smaller than a register leaves of it: zero on Xe2, untouched before (from IGC,
  // which clears such registers itself).
  const bool keeps_rest = !m.isa().xe2 && layout.block_bytes < m.isa().grf_bytes;
  const auto bytes = static_cast<uint32_t>(keeps_rest ? layout.block_bytes : layout.block_stride);
  for (int block = 0; block < b.blocks; ++block) {
    const auto at = static_cast<uint32_t>(block * layout.block_stride);
    std::memcpy(m.thread.grf + m.dst + at, out + at, bytes);
    m.thread.define(m.dst + at, bytes);
  }
}

void store(const Message& m, const Block2d& b, MemoryAccess& memory) {
  const Layout layout = layout_of(m, b);
  require_registers(m.data, static_cast<uint64_t>(layout.block_bytes));
  const auto registers = [&](int y, Clip clip) {
    return m.data + static_cast<uint32_t>(y * layout.row_bytes + clip.first);
  };
  for_rows(b, [&](int y, uint64_t address, Clip clip) {
    m.thread.require_defined(registers(y, clip), clip.bytes(), "src1 (data)");
    memory.reach(address, clip.bytes());
  });
  memory.tell();
  const Piece* piece = memory.pieces();
  for_rows(b, [&](int y, uint64_t, Clip clip) {
    copy_row(piece++->memory, m.thread.grf + registers(y, clip), clip.bytes());
  });
}

}  // namespace

void run_block2d(const Message& m) {
  if (!m.isa().has_block2d) fail("Xe-HPG has no 2D block messages");
  if (m.space != Space::kGlobal || m.base != 0) {
    unknown_message(m, "a 2D block that is not in flat memory");
  }
  if (m.register_bytes != m.memory_bytes) unknown_message(m, "data size of a 2D block");
  const bool store_block = m.op == LscOp::kStoreBlock2d;
  if (store_block && (m.vnni || m.transposed)) unknown_message(m, "a rearranging 2D block store");
  if (m.vnni && m.transposed) unknown_message(m, "a 2D block both transposed and VNNI");
  if (m.vnni && m.memory_bytes > 2) unknown_message(m, "a VNNI 2D block of wide elements");
  if (m.transposed && m.memory_bytes < 4) {
    unknown_message(m, "a transposed 2D block of narrow elements");
  }
  if ((m.lanes & 1) == 0) return;

  const Block2d b = read_header(m);
  if (m.thread.launch->checks.block2d) {
    check_surface(m, b);
    check_shape(m, b);
  }
  if (store_block && b.blocks != 1) fail("2D block: a store of %d blocks", b.blocks);
  MemoryAccess memory(m, Traffic::kBlock2d, m.access(store_block));
  // Kernels that Intel ships do this (paged attention with 16 keys a page), so it is only told.
  memory.narrow_surface = b.width < 64 || b.pitch < 64;
  if (store_block) return store(m, b, memory);
  if (m.has_dst) return load(m, b, memory);
  for_rows(b, [&](int, uint64_t address, Clip clip) { memory.prefetch(address, clip.bytes()); });
  memory.tell();
}

}  // namespace xesim
