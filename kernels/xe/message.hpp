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
// (python/host/arrays/access.cpp).
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

// Returns the surface of a whole row of at least 64 bytes, as a matrix of one row.
template <class T>
XF_INLINE Surface surface(const Line<T>& line) {
  const uint64_t address = reinterpret_cast<uint64_t>(line.row);
  const uint32_t x = static_cast<uint32_t>(address) % 64;
  const uint32_t width = x + static_cast<uint32_t>(line.length) * sizeof(T);
  return {address - x, width - 1, 0, (width + 15) / 16 * 16 - 1, static_cast<int>(x), 0};
}

// The form in which a load returns a block: as it lies; with the rows of each column in consecutive
// elements; with the elements of pairs of rows interleaved.
enum class Form { plain, transposed, paired };

// True if a load can name the place of its block relative to its payload: up to 511 columns and
// rows from there. Without that, x and y are set in the payload.
constexpr bool kHasOffsets = kArch == Arch::bmg;

// A message for `Blocks` blocks of W x H elements, side by side. Its payload stays in a register;
// only x and y change.
template <class Element, int W, int H, int Blocks = 1>
struct BlockMessage {
  using T = Raw<Element>;
  using Bits = UintOfSize<sizeof(T)>;
  static constexpr int kElements = W * H * Blocks;
  simd<uint32_t, 16> payload = 0;
  int x0, y0;

  XF_INLINE explicit BlockMessage(const Surface& s)
      : x0(s.x / static_cast<int>(sizeof(T))), y0(s.y) {
    payload.template bit_cast_view<uint64_t>().template select<1, 1>(0) = s.base;
    payload.template select<1, 1>(2) = s.width;
    payload.template select<1, 1>(3) = s.height;
    payload.template select<1, 1>(4) = s.pitch;
    payload.template select<1, 1>(6) = y0;
    payload.template select<1, 1>(7) = (Blocks - 1) << 16 | (H - 1) << 8 | (W - 1);
    move_x(0);
  }

  XF_INLINE void move_x(int x) { payload.template select<1, 1>(5) = x0 + x; }
  XF_INLINE BlockMessage at_column(int x) const {
    BlockMessage other = *this;
    other.move_x(x);
    return other;
  }
  XF_INLINE void move_y(int y) { payload.template select<1, 1>(6) = y0 + y; }

  template <Form kForm = Form::plain>
  XF_INLINE auto load() {
    return load_with_offsets<kForm, 0, 0>();
  }
  // Loads the block X columns and Y rows from there.
  template <Form kForm, int X, int Y>
  XF_INLINE auto load_from_there() {
    constexpr bool kByOffset = X < 512;
    if constexpr (!kByOffset) move_x(X);
    auto block = load_with_offsets<kForm, kByOffset ? X : 0, Y>();
    if constexpr (!kByOffset) move_x(0);
    return block;
  }
  XF_INLINE void prefetch() {
    simd<Bits, kElements> none;
    __esimd_lsc_prefetch_descriptor<Bits, Blocks, W, H, 0, 0, kElements>(
        kOneLane, payload.data(), none.data(), kDefaultCaching);
  }
  XF_INLINE void store(simd<T, W * H> values) {
    const simd<Bits, W * H> bits = values.template bit_cast_view<Bits>();
    __esimd_lsc_store_descriptor<Bits, Blocks, W, H, 0, 0, kElements>(kOneLane, payload.data(),
                                                                      bits.data(), kDefaultCaching);
  }

 private:
  static constexpr uint16_t kOneLane = 1;
  static constexpr sycl::ext::intel::esimd::detail::vector_type_t<uint8_t, 2> kDefaultCaching = {};

  template <Form kForm, int X, int Y>
  XF_INLINE simd<T, kElements> load_with_offsets() {
    simd<Bits, kElements> none;
    simd<Bits, kElements> loaded;
    if constexpr (kForm == Form::transposed) {
      loaded = __esimd_lsc_load2d_descriptor_transpose<Bits, Blocks, W, H, X, Y, kElements>(
          kOneLane, payload.data(), none.data(), kDefaultCaching);
    } else if constexpr (kForm == Form::paired) {
      loaded = __esimd_lsc_load2d_descriptor_transform<Bits, Blocks, W, H, X, Y, kElements>(
          kOneLane, payload.data(), none.data(), kDefaultCaching);
    } else {
      loaded = __esimd_lsc_load2d_descriptor<Bits, Blocks, W, H, X, Y, kElements>(
          kOneLane, payload.data(), none.data(), kDefaultCaching);
    }
    return loaded.template bit_cast_view<T>();
  }
};

// The messages that load the `Count` blocks of an operand. With offsets there is one message, whose
// loads name the place of their blocks. Without offsets each block has a message, whose payload
// changes only between operands. The payloads of more than Most blocks would take too many
// registers: then one message loads all blocks, or `Turns` messages take turns. A payload must not
// change before its last load has read it. To wait for that costs four instructions on PVC, but a
// product that keeps its order (kInOrder) has waited already.
template <class Message, int Count, int Most, int Turns>
struct Messages {
  static constexpr bool kShared = !kHasOffsets && Count > Most;
  static constexpr bool kInTurn = kShared && kInOrder && Turns > 1;
  static constexpr int kCount = kInTurn ? Turns : kHasOffsets || kShared ? 1 : Count;
  using OfOne = Messages<Message, Count, 0, 1>;  // of an operand that is alone
  Message all[kCount];

  // Block i lies `across(i)` columns from the first one.
  template <class F>
  XF_INLINE Messages(const Surface& s, F across)
      : Messages(Message(s), across, std::make_integer_sequence<int, kCount>()) {}
  // Sets the row from which the blocks are counted.
  XF_INLINE void begin(int row) {
    if constexpr (kHasOffsets) all[0].move_y(row);
  }
  // Loads block I, at column X and row `row` + Y.
  template <Form kForm, int I, int X, int Y>
  XF_INLINE auto load(int row) {
    if constexpr (kHasOffsets) {
      return all[0].template load_from_there<kForm, X, Y>();
    } else {
      Message& own = all[I % kCount];
      if constexpr (kShared) own.move_x(X);
      own.move_y(row + Y);
      return own.template load<kForm>();
    }
  }

 private:
  template <class F, int... I>
  XF_INLINE Messages(const Message& message, F across, std::integer_sequence<int, I...>)
      : all{message.at_column(across(I))...} {}
};

}  // namespace xeflash::xe
