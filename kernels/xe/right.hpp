// Right operands of products: blocks of K and V. 16-bit operands have the VNNI layout of dpas:
// pairs along the reduced dimension, lane = column. fp32 operands have lane = column, too.
#pragma once

#include "xe/left.hpp"

namespace xeflash::xe {

// The type in which elements E of K and V are multiplied with queries of type T: quantised elements
// are widened.
template <class T, class E>
using Operand = T;

// A block of rows of a matrix, read by the message that was made for all blocks: see BlocksOf.
template <class Element, class Message>
struct PreparedRows {
  Element* data;
  Message message;
  int first;
};
// Marks an operand that was staged before: see BlocksOf.
struct Brought {};

template <class Block>
constexpr bool kPrepared = false;
template <class Element, class Message>
constexpr bool kPrepared<PreparedRows<Element, Message>> = true;

// The message that reads a block, and the block's first row as the message counts rows.
template <class Message, int D, class Block>
XF_INLINE Message message_of(const Block& m) {
  if constexpr (kPrepared<Block>)
    return m.message;
  else
    return Message(surface<D>(elements(m)));
}
template <class Block>
XF_INLINE int row_of_message(const Block& m) {
  if constexpr (kPrepared<Block>)
    return m.first;
  else
    return 0;
}

// Loads 8 dwords of each of kLanes rows: [dword][row].
template <int D, class T>
XF_INLINE simd<uint32_t, 8 * kLanes> load_transposed(const Rows<const T>& m, int row, int dword) {
  if constexpr (kReadsBlocks<Rows<const T>>) {
    BlockMessage<uint32_t, 8, kLanes> message(surface<D>(m));
    message.move_x(dword);
    message.move_y(row);
    return message.load_transposed();
  } else {
    return read_transposed<D>(m, row, dword);
  }
}

// The N rows of a block of K. A chunk is 8 dwords of each of kLanes keys, [dword][key]: from a
// transposed 2D load, or from a gather with lane = key. 8 dwords of quantised elements are widened
// to several chunks.
template <class T, int N, int D, class Block = Rows<const T>, int Begin = 0>
struct RightT {
  static_assert(N % kLanes == 0 && D % 8 == 0);
  using E = ElementOf<Block>;
  static constexpr int kRatio = sizeof(T) / sizeof(E);
  static constexpr int kColumns = 32 / sizeof(T);  // of a chunk
  static constexpr int kSteps = round_up(D, kColumns) / kColumns, kBlocks = N / kLanes;
  static constexpr int kBytes = kSteps * kBlocks * 32 * kLanes;
  static constexpr int kSharedBytes = Group::staged ? Group::turns * kBytes : 0;
  Block memory;

  XF_INLINE RightT(const Block& m, Brought) : memory(m) {}
  XF_INLINE explicit RightT(const Block& m) : memory(m) {
    if constexpr (Group::staged) {
      if constexpr (Group::one_place) Group::meet();
      stage(m);
      Group::meet();
    }
  }
  static XF_INLINE void stage(const Block& m) {
    if constexpr (Group::staged) {
      share<round_up(kSteps, kRatio) / kRatio * kBlocks>([&](int i) {
        const int n = i % kBlocks, read = i / kBlocks;
        const auto dwords = read_transposed<D>(elements(m), n * kLanes, read * 8);
        XF_UNROLL for (int c = 0; c < kRatio; ++c) {
          const int step = read * kRatio + c;
          if (kSteps % kRatio != 0 && step >= kSteps) break;
          shared().store(step * kBlocks + n, widen_rows<T, E, 8, kLanes>(dwords, c * 8));
        }
      });
    }
  }
  static XF_INLINE SharedBlocks<8 * kLanes> shared() {
    return {static_cast<uint32_t>(Begin + Group::turn() * kBytes)};
  }

  // How a product reads the chunks: step by step, kColumns columns at a time.
  struct SharedStream {
    XF_INLINE explicit SharedStream(const RightT&) {}
    XF_INLINE void move_to(int) {}
    XF_INLINE simd<T, kColumns * kLanes> load(int step, int n) const {
      auto dwords = shared().load(step * kBlocks + n);
      return dwords.template bit_cast_view<T>();
    }
  };
  using Message = BlockMessage<uint32_t, 8, kLanes>;
  struct Stream2d {
    Message message;
    const int first;
    int at = -1;  // the n for which the message's row is set
    simd<uint32_t, 8 * kLanes> dwords[kBlocks];
    XF_INLINE explicit Stream2d(const RightT& K)
        : message(message_of<Message, D>(K.memory)), first(row_of_message(K.memory)) {}
    XF_INLINE void move_to(int step) {
      if (step % kRatio == 0) message.move_x(step / kRatio * 8);
    }
    XF_INLINE simd<T, kColumns * kLanes> load(int step, int n) {
      if (step % kRatio == 0) {
        if (n != at) message.move_y(first + n * kLanes);
        at = n;
        dwords[n] = message.load_transposed();
      }
      auto chunk = widen_rows<T, E, 8, kLanes>(dwords[n], step % kRatio * 8);
      return chunk.template bit_cast_view<T>();
    }
  };
  using Stream = std::conditional_t<Group::staged, SharedStream, Stream2d>;
};

// The N rows of a block of V, of which a thread multiplies D columns, in blocks of kRows x
// kColumns: 16-bit elements as pairs of rows, [pair][column], for kLanes columns at a time; fp32
// elements as rows. In memory, V has only the thread's own columns; in shared memory, it has the
// columns of the whole team.
template <class T, int N, int D, class Block = Rows<const T>, int Begin = 0>
struct Right {
  static_assert(N % kDepth == 0 && D % 8 == 0);
  using E = ElementOf<Block>;
  static constexpr int kRatio = sizeof(T) / sizeof(E);
  static constexpr bool kPaired = sizeof(T) == 2;
  static constexpr int kRows = !Group::staged && kPaired && N % 32 == 0 && D % 32 == 0 ? 32 : 16;
  static constexpr int kColumns = !Group::staged && kPaired && D % 32 == 0 ? 32
                                  : kPaired                                ? 16
                                                                           : kLanes;
  static constexpr int kOwn = round_up(D, kColumns) / kColumns, kAcross = Group::team * kOwn;
  static_assert(Group::team == 1 || D % kColumns == 0);
  static constexpr int kBytes = N * kAcross * kColumns * sizeof(T);
  static constexpr int kSharedBytes = Group::staged ? Group::turns * kBytes : 0;
  static constexpr int kDwords = kColumns * sizeof(T) / 4;
  Block memory;

  XF_INLINE Right(const Block& m, Brought) : memory(m) {}
  XF_INLINE explicit Right(const Block& m) : memory(m) {
    stage(m);
    if constexpr (Group::staged) Group::meet();
  }
  // Stages the columns of the whole team.
  static XF_INLINE void stage(const Block& m) {
    if constexpr (Group::staged) {
      constexpr int kPerDword = 4 / sizeof(E), kRead = kColumns / kPerDword;
      const auto rows = elements(m);
      const auto inside = rows.columns(0, at_most(rows.width, Group::team * D));
      share<N / kRows * kAcross>([&](int i) {
        const int row = i / kAcross * kRows, dword = i % kAcross * kRead;
        // Rows that do not exist have to be 0: their weights in P are 0, but 0 times NaN is not 0.
        const bool there = row + kRows <= inside.size();
        if (kAccess == Access::dwords && there && (dword + kRead) * kPerDword <= inside.width)
          put(i, widen_in_order<T, E>(read_whole_rows<kRows, kRead, kPaired>(inside, row, dword)));
        else
          put(i, widen_in_order<T, E>(read_rows<kRows, kRead, kPaired>(inside, row, dword)));
      });
    }
  }
  // Shared memory has the blocks in parts: part b of block i has kLanes of its columns.
  static constexpr int kParts = kColumns / kLanes;
  static XF_INLINE SharedBlocks<kRows * kDwords / kParts> shared() {
    return {static_cast<uint32_t>(Begin + Group::turn() * kBytes)};
  }
  static XF_INLINE void put(int i, simd<uint32_t, kRows * kDwords> dwords) {
    if constexpr (!kPaired) {
      shared().store(i, dwords);
    } else {
      simd<T, kRows * kColumns> rows = dwords.template bit_cast_view<T>();
      XF_UNROLL for (int b = 0; b < kParts; ++b) {
        simd<T, kRows * kLanes> pairs;
        XF_UNROLL for (int r = 0; r < kRows; r += 2) {  // two first, or two second, rows of pairs
          pairs.template select<2 * kLanes, 2>(r % (kRows / 2) * 2 * kLanes + 2 * r / kRows) =
              rows.template replicate_vs_w_hs<2, kColumns, kLanes, 1>(r * kColumns + b * kLanes);
        }
        shared().store(i * kParts + b, pairs.template bit_cast_view<uint32_t>());
      }
    }
  }

  struct SharedStream {
    XF_INLINE explicit SharedStream(const Right&) {}
    XF_INLINE simd<T, kRows * kColumns> load(int j, int n) const {
      simd<T, kRows * kColumns> x;
      XF_UNROLL for (int b = 0; b < kParts; ++b) {
        auto dwords = shared().load((j * kAcross + Group::member() * kOwn + n) * kParts + b);
        x.template select<kRows * kLanes, 1>(b * kRows * kLanes) =
            dwords.template bit_cast_view<T>();
      }
      return x;
    }
  };
  static constexpr int kBlock = kPaired ? 16 : kLanes;
  using Message = BlockMessage<E, kBlock, kRows, kColumns / kBlock>;
  struct Stream2d {
    Message message;
    const int first;
    // The j for which the message's row is set: it is set again only for another j. (If the message
    // was made for this block alone, the row is set each time, which leaves IGC less freedom:
    // otherwise kernels for few rows of 256 columns spilled.)
    int at = -1;
    XF_INLINE explicit Stream2d(const Right& V)
        : message(message_of<Message, D>(V.memory)), first(row_of_message(V.memory)) {}
    XF_INLINE simd<T, kRows * kColumns> load(int j, int n) {
      if (!kPrepared<Block> || j != at) message.move_y(first + j * kRows);
      at = j;
      message.move_x(n * kColumns);
      if constexpr (!kQuantised<E>) {
        return loaded();
      } else if constexpr (kPaired) {
        auto bytes = loaded();
        const simd<uint32_t, kRows * kColumns / 4> dwords =
            bytes.template bit_cast_view<uint32_t>();
        auto pairs = widen_rows<T, E, kRows * kColumns / 2 / kBlock, kBlock>(dwords, 0);
        return pairs.template bit_cast_view<T>();
      } else {
        return widen_bytes<T, E>(loaded());
      }
    }
    XF_INLINE auto loaded() {
      if constexpr (kPaired)
        return message.load_vnni();
      else
        return message.load();
    }
  };
  using Stream = std::conditional_t<Group::staged, SharedStream, Stream2d>;
};

// ---- all blocks of a matrix ---------------------------------------------------------------------

// The blocks of rows of a matrix, one after the other, each in two steps. bring() stages the block,
// where blocks are staged, between two barriers of the group; brought() then returns it as a right
// operand.
template <class Operand>
struct BlocksOf;
template <template <class, int, int, class, int> class AnyRight, class T, int N, int D,
          class Element, int Begin>
struct BlocksOf<AnyRight<T, N, D, Rows<Element>, Begin>> {
  using Operand = AnyRight<T, N, D, Rows<Element>, Begin>;
  const Rows<Element> rows;

  XF_INLINE explicit BlocksOf(const Rows<Element>& m) : rows(m) {}
  XF_INLINE void bring(int first) const { Operand::stage(rows.from(first)); }
  XF_INLINE Operand brought(int first) const { return Operand(rows.from(first), Brought()); }
};
template <template <class, int, int, class, int> class AnyRight, class T, int N, int D,
          class Element, int Begin>
  requires kReadsBlocks<Rows<Element>>
struct BlocksOf<AnyRight<T, N, D, Rows<Element>, Begin>> {
  using Message = typename AnyRight<T, N, D, Rows<Element>, Begin>::Message;
  using Prepared = PreparedRows<Element, Message>;
  Message message;

  XF_INLINE explicit BlocksOf(const Rows<Element>& m) : message(surface<D>(m)) {}
  XF_INLINE void bring(int) const {}
  XF_INLINE auto brought(int first) const {
    return AnyRight<T, N, D, Prepared, Begin>(Prepared{nullptr, message, first});
  }
};

// ---- ahead of time ------------------------------------------------------------------------------

// Prefetches this thread's share of N rows of D columns into the cache that the group shares. A
// message is for one cache line of up to 32 rows.
template <int N, int D, class Block>
XF_INLINE void prefetch(const Block& m) {
  const auto rows = elements(m);
  if constexpr (kReadsBlocks<std::remove_const_t<decltype(rows)>>) {
    using T = ElementOf<Block>;
    constexpr int kColumns = 64 / sizeof(T), kRows = N < 32 ? N : 32;
    constexpr int kAcross = round_up(D, kColumns) / kColumns, kBlocks = N / kRows * kAcross;
    // a single block of 2-byte elements has at most 16 columns
    constexpr int kSide = sizeof(T) == 2 ? 2 : 1;
    BlockMessage<T, kColumns / kSide, kRows, kSide> message(surface<D>(rows));
    share<kBlocks>([&](int block) {
      message.move_y(block / kAcross * kRows);
      message.move_x(block % kAcross * kColumns);
      message.prefetch();
    });
  }
}

// Prefetches blocks of one matrix, one after the other. The message is made only once.
template <int N, int D, class Matrix>
struct Ahead {
  XF_INLINE explicit Ahead(const Matrix&) {}
  XF_INLINE void fetch(int) {}
};
template <int N, int D, class Matrix>
  requires kReadsBlocks<Matrix>
struct Ahead<N, D, Matrix> {
  using T = ElementOf<Matrix>;
  static constexpr int kColumns = 64 / sizeof(T), kRows = N < 32 ? N : 32;
  static constexpr int kAcross = round_up(D, kColumns) / kColumns, kBlocks = N / kRows * kAcross;
  static constexpr int kSide = sizeof(T) == 2 ? 2 : 1;  // see prefetch()
  BlockMessage<T, kColumns / kSide, kRows, kSide> message;

  XF_INLINE explicit Ahead(const Matrix& m) : message(surface<D>(m)) {}
  XF_INLINE void fetch(int first) {
    share<kBlocks>([&](int block) {
      message.move_y(first + block / kAcross * kRows);
      message.move_x(block % kAcross * kColumns);
      message.prefetch();
    });
  }
};

}  // namespace xeflash::xe
