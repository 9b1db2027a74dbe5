// Operands of products. 16-bit ones in the layouts of dpas: A in rows of 16 elements, B as pairs
// down the reduced dimension, lane = column. fp32 ones for the vector unit: A in tiles, B with
// lane = column, too.
#pragma once

#include "xe/message.hpp"
#include "xe/shared.hpp"

namespace xeflash::xe {

constexpr int kDepth = 16;  // of one dpas, in 16-bit elements

// ---- A ------------------------------------------------------------------------------------------

// R x C in registers: x[column / kWidth][row][kWidth columns]. Narrower ones are parts of a block.
template <class T, int R, int C, int Width = sizeof(T) == 2 ? kDepth : kLanes>
struct Left {
  static constexpr int kWidth = Width, kColumns = round_up(C, kWidth);
  static constexpr int kSharedBytes = 0;
  static_assert(R % 8 == 0);
  simd<T, R * kColumns> x;

  // 8 rows x kWidth columns
  XF_INLINE simd<T, 8 * kWidth> block(int r, int c) const {
    return part<8 * kWidth>(x, (c * R + r * 8) * kWidth);
  }
  // A product takes its columns in steps: those of `step` come next.
  struct Stream {
    const Left& A;
    XF_INLINE explicit Stream(const Left& a) : A(a) {}
    XF_INLINE void move_to(int) {}
    XF_INLINE auto block(int r, int column) const { return A.block(r, column / kWidth); }
  };
  static constexpr int offset(int row, int column) {
    return (column / kWidth * R + row) * kWidth + column % kWidth;
  }
};

// 8 or R rows x kWidth columns from column `c * kWidth` of a matrix.
template <class T, int R, int D, class Rows>
XF_INLINE simd<T, R * Left<T, R, D>::kWidth> load_left(const Rows& m, int c) {
  constexpr int kWidth = Left<T, R, D>::kWidth;
  if constexpr (kReadsBlocks<Rows>) {
    BlockMessage<T, kWidth, R> message(surface<D>(m));
    message.move_x(c * kWidth);
    return message.load();
  } else {
    constexpr int kDwords = kWidth * sizeof(T) / 4;
    auto dwords = read_rows<R, kDwords>(m.columns(0, D), 0, c * kDwords);
    return dwords.template bit_cast_view<T>();
  }
}

template <class T, int R, int C, class Rows>
XF_INLINE void load(Left<T, R, C>& A, const Rows& m) {
  constexpr int kPart = R * Left<T, R, C>::kWidth;
  XF_UNROLL for (int c = 0; c < A.kColumns / A.kWidth; ++c) {
    A.x.template select<kPart, 1>(c * kPart) = load_left<T, R, C>(m, c);
  }
}
// A tile is laid out as a left operand of fp32.
template <int R, int C>
XF_INLINE void load(Tile<R, C>& t, const Rows<const float>& m) {
  Left<float, R, C> x;
  load(x, m);
  t.x = x.x;
}

template <class T, int N>
XF_INLINE void negate(simd<T, N>& x) {
  x.template bit_cast_view<uint32_t>() ^= sizeof(T) == 2 ? 0x80008000u : 0x80000000u;
}
template <class T, int R, int C>
XF_INLINE void negate(Left<T, R, C>& A) {
  negate(A.x);
}

// R x C that is too wide for registers beside O and S: stays in memory ...
template <class T, int R, int C>
struct StreamedLeft {
  static constexpr int kWidth = Left<T, R, C>::kWidth;
  static constexpr int kSharedBytes = 0;
  Rows<const T> memory = {};
  bool negative = false;

  // All rows of a cache line of columns at a time.
  struct Stream {
    static constexpr int kAcross = 64 / sizeof(T) / kWidth, kColumns = kAcross * kWidth;
    BlockMessage<T, kWidth, R, kAcross> message;
    simd<T, R * kColumns> columns;
    bool negative;

    XF_INLINE explicit Stream(const StreamedLeft& A)
        : message(surface<C>(A.memory)), negative(A.negative) {}
    XF_INLINE void move_to(int column) {
      if (column % kColumns != 0) return;
      message.move_x(column);
      columns = message.load();
      if (negative) xe::negate(columns);
    }
    XF_INLINE simd<T, 8 * kWidth> block(int r, int column) const {
      return part<8 * kWidth>(columns, (column / kWidth % kAcross * R + r * 8) * kWidth);
    }
  };
};
template <class T, int R, int C>
XF_INLINE void load(StreamedLeft<T, R, C>& A, const Rows<const T>& m) {
  A.memory = m;
}
template <class T, int R, int C>
XF_INLINE void negate(StreamedLeft<T, R, C>& A) {
  A.negative = true;
}

// ... or is put in order once in shared memory, the rows of each tile behind the tiles `Before`.
template <class T, int R, int C, class... Before>
struct SharedLeft {
  static constexpr int kWidth = Left<T, R, C>::kWidth, kColumns = Left<T, R, C>::kColumns;
  static constexpr int kBytes = R * kColumns * sizeof(T);
  static constexpr int kSharedBytes = kThreads / kTeam * kBytes;
  static constexpr int kDwords = 8 * kWidth * sizeof(T) / 4;
  bool negative = false;

  static XF_INLINE SharedBlocks<kDwords> shared() {
    return {
        static_cast<uint32_t>((Before::kSharedBytes + ...) + thread_in_group() / kTeam * kBytes)};
  }
  struct Stream {
    const SharedLeft& A;
    XF_INLINE explicit Stream(const SharedLeft& a) : A(a) {}
    XF_INLINE void move_to(int) {}
    XF_INLINE simd<T, 8 * kWidth> block(int r, int column) const {
      auto dwords = shared().load(column / kWidth * (R / 8) + r);
      simd<T, 8 * kWidth> x = dwords.template bit_cast_view<T>();
      if (A.negative) xe::negate(x);
      return x;
    }
  };
};
template <class T, int R, int C, class Rows, class... Before>
XF_INLINE void load(SharedLeft<T, R, C, Before...>& A, const Rows& m) {
  const auto put = [&](int c) {
    XF_UNROLL for (int r = 0; r < R / 8; ++r) {
      auto x = load_left<T, 8, C>(m.from(r * 8), c);
      A.shared().store(c * (R / 8) + r, x.template bit_cast_view<uint32_t>());
    }
  };
  using Whole = SharedLeft<T, R, C, Before...>;
  share<Whole::kColumns / Whole::kWidth, kTeam>(put, member());
}
template <class T, int R, int C, class... Before>
XF_INLINE void negate(SharedLeft<T, R, C, Before...>& A) {
  A.negative = true;
}

template <class Rows, class T, int R, int C, class... Before>
using Query = std::conditional_t<
    (R * C * sizeof(T) <= kGrfBytes / 8), Left<T, R, C>,
    std::conditional_t<kReadsBlocks<Rows>, StreamedLeft<T, R, C>, SharedLeft<T, R, C, Before...>>>;

// P = 2^(S * scale - m) in the type of V; l += row sums of P, before it is rounded.
template <int Degree, class T, int R, int C, int Width, class Sum>
XF_INLINE void exp2_and_sum(Left<T, R, C, Width>& P, const Tile<R, C>& S, float scale,
                            const ColVec<R>& m, Sum& l) {
  ColSum<R> sum;
  XF_UNROLL for (int c = 0; c < S.kChunks; ++c) {
    simd<float, R * kLanes> p;
    XF_UNROLL for (int r = 0; r < R; ++r) {
      p.template select<kLanes, 1>(r * kLanes) = esimd::exp2(floats(S.row(r, c) * scale - m[r]));
    }
    if constexpr (kLanes < Width) {  // a row of P is two chunks
      const simd<T, R * kLanes> narrow = esimd::convert<T>(p);
      XF_UNROLL for (int r = 0; r < R; ++r) {
        P.x.template select<kLanes, 1>(P.offset(r, c * kLanes)) = part<kLanes>(narrow, r * kLanes);
      }
    } else if constexpr (sizeof(T) == 2) {
      P.x.template select<R * kLanes, 1>(c * R * kLanes) = esimd::convert<T>(p);
    } else {
      P.x.template select<R * kLanes, 1>(c * R * kLanes) = p;
    }
    sum.x = c == 0 ? p : simd<float, R * kLanes>(sum.x + p);
  }
  l += sum;
}

// Column j times the factor of row j, and `unit`.
template <template <int, int> class AnyTile, int R, int C, class Factors>
XF_INLINE void scale_columns(AnyTile<R, C>& t, const Factors& factors, float unit = 1.f) {
  XF_UNROLL for (int c = 0; c < t.kChunks; ++c) {
    const floats f = read_values<kLanes>(factors, c * kLanes) * unit;
    XF_UNROLL for (int r = 0; r < R; ++r) t.row(r, c) *= f;
  }
}
template <class T, int R, int C, class Factors>
XF_INLINE void scale_columns(Left<T, R, C>& P, const Factors& factors, float unit) {
  constexpr int kWidth = Left<T, R, C>::kWidth;
  XF_UNROLL for (int c = 0; c < C; c += kWidth) {
    const simd<float, kWidth> f = read_values<kWidth>(factors, c) * unit;
    XF_UNROLL for (int r = 0; r < R; ++r) {
      auto row = P.x.template select<kWidth, 1>(P.offset(r, c));
      row = esimd::convert<T>(simd<float, kWidth>(esimd::convert<float>(simd<T, kWidth>(row)) * f));
    }
  }
}

// ---- B ------------------------------------------------------------------------------------------

// What elements E of K and V are multiplied as with queries of T: quantised ones are widened.
template <class T, class E>
using Operand = T;

// N rows of K, a Block. A chunk is 8 dwords of each of kLanes keys, [dword][key]: by a transposed
// 2D load, or a gather with a key a lane. 8 dwords of quantised elements are several chunks.
template <class T, int N, int D, class Block = Rows<const T>>
struct Keys {
  static_assert(N % kLanes == 0 && D % 8 == 0);
  using E = ElementOf<Block>;
  static constexpr int kRatio = sizeof(T) / sizeof(E);
  static constexpr int kColumns = 32 / sizeof(T);  // of a chunk
  static constexpr int kSteps = round_up(D, kColumns) / kColumns, kBlocks = N / kLanes;
  static constexpr int kBytes = kSteps * kBlocks * 32 * kLanes;
  static constexpr int kSharedBytes = kStaged ? kKeyTurns * kBytes : 0;
  Block memory;

  XF_INLINE explicit Keys(const Block& m) : memory(m) {
    if constexpr (kStaged) {
      if constexpr (kOnePlace) meet();
      share<round_up(kSteps, kRatio) / kRatio * kBlocks>([&](int i) {
        const int n = i % kBlocks, read = i / kBlocks;
        const auto dwords = read_transposed<D>(elements(m), n * kLanes, read * 8);
        XF_UNROLL for (int c = 0; c < kRatio; ++c) {
          const int step = read * kRatio + c;
          if (kSteps % kRatio != 0 && step >= kSteps) break;
          shared().store(step * kBlocks + n, widen_rows<T, E, 8, kLanes>(dwords, c * 8));
        }
      });
      meet();
    }
  }
  static XF_INLINE SharedBlocks<8 * kLanes> shared() {
    return {static_cast<uint32_t>(key_turn() * kBytes)};
  }

  // How the chunks of a product are read, one step of kColumns after the other.
  struct SharedStream {
    XF_INLINE explicit SharedStream(const Keys&) {}
    XF_INLINE void move_to(int) {}
    XF_INLINE simd<T, kColumns * kLanes> load(int step, int n) const {
      auto dwords = shared().load(step * kBlocks + n);
      return dwords.template bit_cast_view<T>();
    }
  };
  struct Stream2d {
    BlockMessage<uint32_t, 8, kLanes> message;
    simd<uint32_t, 8 * kLanes> dwords[kBlocks];
    XF_INLINE explicit Stream2d(const Keys& K) : message(surface<D>(elements(K.memory))) {}
    XF_INLINE void move_to(int step) {
      if (step % kRatio == 0) message.move_x(step / kRatio * 8);
    }
    XF_INLINE simd<T, kColumns * kLanes> load(int step, int n) {
      if (step % kRatio == 0) {
        message.move_y(n * kLanes);
        dwords[n] = message.load_transposed();
      }
      auto chunk = widen_rows<T, E, 8, kLanes>(dwords[n], step % kRatio * 8);
      return chunk.template bit_cast_view<T>();
    }
  };
  using Stream = std::conditional_t<kStaged, SharedStream, Stream2d>;
};

// N rows of V, a Block, of which a thread takes D columns, in blocks of kRows x kColumns: 16-bit
// elements as pairs of rows, [pair][column], kLanes columns after the other; fp32 as rows. In
// shared memory the columns of the team, behind `Before` or in its place.
template <class T, int N, int D, class Before, class Block = Rows<const T>>
struct Values {
  static_assert(N % kDepth == 0 && D % 8 == 0);
  using E = ElementOf<Block>;
  static constexpr int kRatio = sizeof(T) / sizeof(E);
  static constexpr bool kPaired = sizeof(T) == 2;
  static constexpr int kRows = !kStaged && kPaired && N % 32 == 0 && D % 32 == 0 ? 32 : 16;
  static constexpr int kColumns = !kStaged && kPaired && D % 32 == 0 ? 32 : kPaired ? 16 : kLanes;
  static constexpr int kOwn = round_up(D, kColumns) / kColumns, kAcross = kTeam * kOwn;
  static_assert(kTeam == 1 || D % kColumns == 0);
  static constexpr int kBytes = N * kAcross * kColumns * sizeof(T);
  static constexpr int kBegin = kOnePlace ? 0 : shared_bytes<Before>();
  static constexpr int kBehind = kBegin + kKeyTurns * kBytes - shared_bytes<Before>();
  static constexpr int kSharedBytes = kStaged && kBehind > 0 ? kBehind : 0;
  static constexpr int kDwords = kColumns * sizeof(T) / 4;
  Block memory;

  // The columns of the team.
  XF_INLINE explicit Values(const Block& m) : memory(m) {
    if constexpr (kStaged) {
      constexpr int kPerDword = 4 / sizeof(E), kRead = kColumns / kPerDword;
      const auto rows = elements(m);
      const auto inside = rows.columns(0, at_most(rows.width, kTeam * D));
      share<N / kRows * kAcross>([&](int i) {
        const int row = i / kAcross * kRows, dword = i % kAcross * kRead;
        if (kAccess == Access::dwords && (dword + kRead) * kPerDword <= inside.width)
          put(i, widen_in_order<T, E>(read_whole_rows<kRows, kRead, kPaired>(inside, row, dword)));
        else
          put(i, widen_in_order<T, E>(read_rows<kRows, kRead, kPaired>(inside, row, dword)));
      });
      meet();
    }
  }
  // Part b of block i: kLanes of its columns.
  static constexpr int kParts = kColumns / kLanes;
  static XF_INLINE SharedBlocks<kRows * kDwords / kParts> shared() {
    return {static_cast<uint32_t>(kBegin + key_turn() * kBytes)};
  }
  static XF_INLINE void put(int i, simd<uint32_t, kRows * kDwords> dwords) {
    if constexpr (!kPaired) {
      shared().store(i, dwords);
    } else {
      simd<T, kRows * kColumns> rows = dwords.template bit_cast_view<T>();
      XF_UNROLL for (int b = 0; b < kParts; ++b) {
        simd<T, kRows * kLanes> pairs;
        XF_UNROLL for (int r = 0; r < kRows; r += 2) {  // two rows that come first, or second
          pairs.template select<2 * kLanes, 2>(r % (kRows / 2) * 2 * kLanes + 2 * r / kRows) =
              rows.template replicate_vs_w_hs<2, kColumns, kLanes, 1>(r * kColumns + b * kLanes);
        }
        shared().store(i * kParts + b, pairs.template bit_cast_view<uint32_t>());
      }
    }
  }

  struct SharedStream {
    XF_INLINE explicit SharedStream(const Values&) {}
    XF_INLINE simd<T, kRows * kColumns> load(int j, int n) const {
      simd<T, kRows * kColumns> x;
      XF_UNROLL for (int b = 0; b < kParts; ++b) {
        auto dwords = shared().load((j * kAcross + member() * kOwn + n) * kParts + b);
        x.template select<kRows * kLanes, 1>(b * kRows * kLanes) =
            dwords.template bit_cast_view<T>();
      }
      return x;
    }
  };
  struct Stream2d {
    static constexpr int kBlock = kPaired ? 16 : kLanes;
    BlockMessage<E, kBlock, kRows, kColumns / kBlock> message;
    XF_INLINE explicit Stream2d(const Values& V)
        : message(surface<D>(elements(V.memory).columns(member() * D, elements(V.memory).width))) {}
    XF_INLINE simd<T, kRows * kColumns> load(int j, int n) {
      message.move_y(j * kRows);
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
  using Stream = std::conditional_t<kStaged, SharedStream, Stream2d>;
};

// ---- ahead of time ------------------------------------------------------------------------------

// This thread's share of N rows of D columns, to the cache that they share: 32 rows of
// one cache line a message.
template <int N, int D, class Block>
XF_INLINE void prefetch(const Block& m) {
  const auto rows = elements(m);
  if constexpr (kReadsBlocks<std::remove_const_t<decltype(rows)>>) {
    using T = ElementOf<Block>;
    constexpr int kColumns = 64 / sizeof(T), kRows = N < 32 ? N : 32;
    constexpr int kAcross = round_up(D, kColumns) / kColumns, kBlocks = N / kRows * kAcross;
    // 16 columns of 2 bytes are the widest single block
    constexpr int kSide = sizeof(T) == 2 ? 2 : 1;
    BlockMessage<T, kColumns / kSide, kRows, kSide> message(surface<D>(rows));
    share<kBlocks>([&](int block) {
      message.move_y(block / kAcross * kRows);
      message.move_x(block % kAcross * kColumns);
      message.prefetch();
    });
  }
}

// ---- results ------------------------------------------------------------------------------------

// All columns of every row, by few messages.
template <int R, int D, class Rows>
XF_INLINE void store_whole_rows(const Rows& m, const Tile<R, D>& O) {
  using T = std::remove_pointer_t<decltype(m.data)>;
  const auto place = places<R>(m, 0);
  XF_UNROLL for (int r = 0; r < R; ++r) {
    simd<T, Tile<R, D>::kColumns> row;
    XF_UNROLL for (int c = 0; c < O.kChunks; ++c) {
      row.template select<kLanes, 1>(c * kLanes) = esimd::convert<T>(floats(O.row(r, c)));
    }
    const simd<uint32_t, row.length * sizeof(T) / 4> dwords =
        row.template bit_cast_view<uint32_t>();
    store_dwords<D * sizeof(T) / 4>(at_place(m.data, place[r]), dwords, r < m.size());
  }
}

template <int R, int D, class Rows>
XF_INLINE void store(const Rows& m, const Tile<R, D>& O) {
  using T = std::remove_pointer_t<decltype(m.data)>;
  if constexpr (kAccess == Access::dwords && D % 8 == 0) {
    if (m.width >= D) return store_whole_rows(m, O);
  }
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  simd<T, R * Tile<R, D>::kColumns> values;
  if constexpr (sizeof(T) == 2)
    values = esimd::convert<T>(O.x);
  else
    values = O.x;
  auto bits = values.template bit_cast_view<Bits>();  // float stores convert values (2026.2)
  if constexpr (kReadsBlocks<Rows>) {
    BlockMessage<Bits, kLanes, 8> message(surface<D>(m));
    XF_UNROLL for (int c = 0; c < O.kChunks; ++c) {
      message.move_x(c * kLanes);
      XF_UNROLL for (int r = 0; r < R; r += 8) {
        message.move_y(r);
        message.store(bits.template select<8 * kLanes, 1>((c * R + r) * kLanes));
      }
    }
  } else {
    const int columns = at_most(m.width, D);
    const auto place = places<R>(m, 0);
    XF_UNROLL for (int r = 0; r < R; ++r) {
      auto* first = reinterpret_cast<Bits*>(at_place(m.data, place[r]));
      XF_UNROLL for (int c = 0; c < O.kChunks; ++c) {
        const ints column = lane_index() + c * kLanes;
        const simd<Bits, kLanes> x = bits.template select<kLanes, 1>((c * R + r) * kLanes);
        esimd::scatter<Bits, kLanes>(first, simd<uint32_t, kLanes>(column * int(sizeof(T))), x,
                                     (column < columns) & (r < m.size()));
      }
    }
  }
}

// One value per row.
template <int R, class Rows>
XF_INLINE void store(const Rows& m, const ColVec<R>& v) {
  esimd::scatter<float, R>(m.data, places<R>(m, 0), v.x, simd<int32_t, R>(0, 1) < m.size());
}
template <int R, class Rows>
XF_INLINE ColVec<R> load_values(const Rows& m) {
  return simd<float, R>(esimd::gather<float, R>(m.data, places<R>(m, 0)));
}

}  // namespace xeflash::xe
