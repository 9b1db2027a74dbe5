// Right operands of products: blocks of K and V. 16-bit operands have the VNNI layout of dpas:
// pairs along the reduced dimension, lane = column. fp32 operands have lane = column, too.
#pragma once

#include "xe/left.hpp"
#include "xe/nibbles.hpp"

namespace xeflash::xe {

// The type in which elements E of K and V are multiplied with queries of type T: quantised elements
// are widened.
template <class T, class E>
using Operand = T;

// A block of rows of a matrix, read by the messages that were made for all blocks: see BlocksOf.
template <class Element, class Messages>
struct PreparedRows {
  Element* data;
  Messages& messages;
  int first;
};
// Marks an operand that was staged before: see BlocksOf.
struct Brought {};

// The messages that read a block, and its first row in the order in which they count rows.
template <class Messages, int D, class Block>
struct BlockReader {
  static constexpr bool kInTurn = false;
  typename Messages::OfOne messages;
  static constexpr int row = 0;
  template <class F>
  XF_INLINE BlockReader(const Block& m, F across) : messages(surface<D>(elements(m)), across) {}
};
template <class Messages, int D, class Element>
struct BlockReader<Messages, D, PreparedRows<Element, Messages>> {
  static constexpr bool kInTurn = Messages::kInTurn;
  Messages& messages;
  const int row;
  template <class F>
  XF_INLINE BlockReader(const PreparedRows<Element, Messages>& m, F)
      : messages(m.messages), row(m.first) {}
};

// Loads 8 dwords of each of kLanes rows: [dword][row].
template <int D, class T>
XF_INLINE simd<uint32_t, 8 * kLanes> load_transposed(const Rows<const T>& m, int row, int dword) {
  if constexpr (kReadsBlocks<Rows<const T>>) {
    BlockMessage<uint32_t, 8, kLanes> message(surface<D>(m));
    message.move_x(dword);
    message.move_y(row);
    return message.template load<Form::transposed>();
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
        const auto rows = elements(m);
        const auto dwords = n * kLanes + kLanes <= rows.size()
                                ? read_transposed<D, true>(rows, n * kLanes, read * 8)
                                : read_transposed<D>(rows, n * kLanes, read * 8);
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

  // A product reads the chunks with this object, step by step: kColumns columns of some blocks of
  // keys at a time, from block `first` on.
  struct SharedStream {
    const int first;
    XF_INLINE SharedStream(const RightT&, int first) : first(first) {}
    template <int kStep, int Count>
    XF_INLINE void load(simd<T, kColumns * kLanes> (&chunks)[Count]) const {
      auto dwords = shared().template load_several<Count>(kStep * kBlocks + first);
      XF_UNROLL for (int n = 0; n < Count; ++n) {
        simd<uint32_t, 8 * kLanes> one = part<8 * kLanes>(dwords, n * 8 * kLanes);
        chunks[n] = one.template bit_cast_view<T>();
      }
    }
  };
  static constexpr int kOwnBlocks = kBlocks / Group::team > 0 ? kBlocks / Group::team : 1;
  static constexpr int kReads = round_up(kSteps, kRatio) / kRatio;
  using Messages =
      xe::Messages<BlockMessage<uint32_t, 8, kLanes>, kReads * kOwnBlocks, 8, 2 * kOwnBlocks>;
  using Reader = BlockReader<Messages, D, Block>;
  static constexpr bool kInTurn = !Group::staged && Reader::kInTurn;
  static XF_INLINE int across(int i) { return i / kOwnBlocks * 8; }
  struct Stream2d {
    Reader reader;
    const int row;
    simd<uint32_t, 8 * kLanes> dwords[kBlocks];
    XF_INLINE Stream2d(const RightT& K, int first)
        : reader(K.memory, across), row(reader.row + first * kLanes) {
      reader.messages.begin(row);
    }
    template <int kStep, int Count>
    XF_INLINE void load(simd<T, kColumns * kLanes> (&chunks)[Count]) {
      in_steps<Count>([&](auto i) __attribute__((always_inline)) {
        constexpr int n = i, kRead = kStep / kRatio, kIndex = kRead * Count + n;
        if constexpr (kStep % kRatio == 0) {
          dwords[n] =
              reader.messages.template load<Form::transposed, kIndex, kRead * 8, n * kLanes>(row);
        }
        auto chunk = widen_rows<T, E, 8, kLanes>(dwords[n], kStep % kRatio * 8);
        chunks[n] = chunk.template bit_cast_view<T>();
      });
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
  static constexpr int kRows = !Group::staged && kPaired && N % 32 == 0 ? 32 : 16;
  static constexpr int kColumns = !Group::staged && kPaired && round_up(D, 16) % 32 == 0 ? 32
                                  : kPaired                                              ? 16
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
  // Stages the columns of the whole team, in pieces. Pieces are wide if the team has many columns,
  // because a message then reads more of one row.
  static constexpr bool kWide = kPaired && sizeof(E) == 2 && kAcross * kColumns % 32 == 0;
  static constexpr int kPieceRows = kWide ? 8 : kRows, kPieceColumns = kWide ? 32 : kColumns;
  static XF_INLINE void stage(const Block& m) {
    if constexpr (Group::staged) {
      constexpr int kPerDword = 4 / sizeof(E), kRead = kPieceColumns / kPerDword;
      constexpr int kPieces = kAcross * kColumns / kPieceColumns;
      const auto rows = elements(m);
      const auto inside = rows.columns(0, at_most(rows.width, Group::team * D));
      share<N / kPieceRows * kPieces>([&](int i) {
        const int row = i / kPieces * kPieceRows, dword = i % kPieces * kRead;
        const auto put_read = [&](auto dwords) {
          put(row, i % kPieces * kPieceColumns, widen_in_order<T, E>(dwords));
        };
        // Rows that do not exist have to be 0: their weights in P are 0, but 0 times NaN is not 0.
        const bool there = row + kPieceRows <= inside.size();
        if (kAccess == Access::dwords && there && (dword + kRead) * kPerDword <= inside.width)
          put_read(read_whole_rows<kPieceRows, kRead, kPaired>(inside, row, dword));
        else
          put_read(read_rows<kPieceRows, kRead, kPaired>(inside, row, dword));
      });
    }
  }
  // Shared memory has the blocks in parts: part b of block i has kLanes of its columns.
  static constexpr int kParts = kColumns / kLanes;
  static XF_INLINE SharedBlocks<kRows * kDwords / kParts> shared() {
    return {static_cast<uint32_t>(Begin + Group::turn() * kBytes)};
  }
  // A part of a piece; pieces begin at multiples of their own rows.
  static constexpr int kPart = kPieceRows * kLanes * sizeof(T) / 4;
  static XF_INLINE void put(int row, int column, simd<uint32_t, kPart * kPieceColumns / kLanes> x) {
    const int first = row / kRows * kAcross * kParts + column / kLanes;
    const int offset = row % kRows / kPieceRows;
    if constexpr (kPaired) {
      simd<T, kPieceRows * kPieceColumns> rows = x.template bit_cast_view<T>();
      XF_UNROLL for (int b = 0; b < kPieceColumns / kLanes; ++b) {
        simd<T, kPieceRows * kLanes> pairs;
        XF_UNROLL for (int r = 0; r < kPieceRows; r += 2) {  // two first, or second, rows of pairs
          const int to = r % (kPieceRows / 2) * 2 * kLanes + 2 * r / kPieceRows;
          pairs.template select<2 * kLanes, 2>(to) =
              rows.template replicate_vs_w_hs<2, kPieceColumns, kLanes, 1>(r * kPieceColumns +
                                                                           b * kLanes);
        }
        x.template select<kPart, 1>(b * kPart) = pairs.template bit_cast_view<uint32_t>();
      }
    }
    const SharedBlocks<kPart> parts{shared().begin};
    XF_UNROLL for (int b = 0; b < kPieceColumns / kLanes; ++b) {
      parts.store((first + b) * (kRows / kPieceRows) + offset, part<kPart>(x, b * kPart));
    }
  }

  struct SharedStream {
    XF_INLINE explicit SharedStream(const auto&) {}
    template <int j, int n>
    XF_INLINE simd<T, kRows * kColumns> load() const {
      auto dwords = shared().template load_several<kParts>(
          (j * kAcross + Group::member() * kOwn + n) * kParts);
      return dwords.template bit_cast_view<T>();
    }
  };
  static constexpr int kBlock = kPaired ? 16 : kLanes;
  using Messages =
      xe::Messages<BlockMessage<E, kBlock, kRows, kColumns / kBlock>, N / kRows * kOwn, 4, 1>;
  static XF_INLINE int across(int i) { return i % kOwn * kColumns; }
  struct Stream2d {
    BlockReader<Messages, D, Block> reader;
    XF_INLINE explicit Stream2d(const Right& V) : reader(V.memory, across) {
      reader.messages.begin(reader.row);
    }
    template <int j, int n>
    XF_INLINE simd<T, kRows * kColumns> load() {
      constexpr Form kForm = kPaired ? Form::paired : Form::plain;
      auto loaded =
          reader.messages.template load<kForm, j * kOwn + n, n * kColumns, j * kRows>(reader.row);
      if constexpr (!kQuantised<E>) {
        return loaded;
      } else if constexpr (kPaired) {
        const simd<uint32_t, kRows * kColumns / 4> dwords =
            loaded.template bit_cast_view<uint32_t>();
        auto pairs = widen_rows<T, E, kRows * kColumns / 2 / kBlock, kBlock>(dwords, 0);
        return pairs.template bit_cast_view<T>();
      } else {
        return widen_bytes<T, E>(loaded);
      }
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
  using Operand = AnyRight<T, N, D, Rows<Element>, Begin>;
  using Messages = typename Operand::Messages;
  using Prepared = PreparedRows<Element, Messages>;
  mutable Messages messages;

  XF_INLINE explicit BlocksOf(const Rows<Element>& m) : messages(surface<D>(m), Operand::across) {}
  XF_INLINE void bring(int) const {}
  XF_INLINE auto brought(int first) const {
    return AnyRight<T, N, D, Prepared, Begin>(Prepared{nullptr, messages, first});
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
    constexpr int kElements = D / kPerElement<T>;  // of a row; fewer than a line's only of nibbles
    constexpr int kColumns = kNibbles<T> ? at_most(kElements, 64) : 64 / sizeof(T);
    constexpr int kRows = N < 32 ? N : 32;
    constexpr int kAcross = round_up(kElements, kColumns) / kColumns, kBlocks = N / kRows * kAcross;
    // a single block of 2-byte elements has at most 16 columns
    constexpr int kSide = sizeof(T) == 2 ? 2 : 1;
    BlockMessage<T, kColumns / kSide, kRows, kSide> message(surface<kElements>(rows));
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
