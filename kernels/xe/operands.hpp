// Operands of products. 16-bit ones in the layouts of dpas: A in rows of 16 elements, B as pairs
// down the reduced dimension, lane = column. fp32 ones for the vector unit: A in tiles, B with
// lane = column, too.
#pragma once

#include "xe/message.hpp"
#include "xe/tile.hpp"

namespace xeflash::xe {

constexpr int kDepth = 16;  // of one dpas, in 16-bit elements

// ---- A ------------------------------------------------------------------------------------------

// R x C in registers: x[column / kWidth][row][kWidth columns].
template <class T, int R, int C>
struct Left {
  static constexpr int kWidth = sizeof(T) == 2 ? kDepth : kLanes, kColumns = round_up(C, kWidth);
  static_assert(R % 8 == 0);
  simd<T, R * kColumns> x;

  // 8 rows x kWidth columns
  XF_INLINE simd<T, 8 * kWidth> block(int r, int c) const {
    return part<8 * kWidth>(x, (c * R + r * 8) * kWidth);
  }
  static constexpr int offset(int row, int column) {
    return (column / kWidth * R + row) * kWidth + column % kWidth;
  }
};

// 8 or R rows x kWidth columns from column `c * kWidth` of a matrix.
template <class T, int R, int D>
XF_INLINE simd<T, R * Left<T, R, D>::kWidth> load_left(const Rows<const T>& m, int c) {
  constexpr int kWidth = Left<T, R, D>::kWidth;
  if constexpr (kAccess == Access::block2d) {
    BlockMessage<T, kWidth, R> message(surface<D>(m));
    message.move_x(c * kWidth);
    return message.load();
  } else {
    constexpr int kDwords = kWidth * sizeof(T) / 4;
    auto dwords = read_rows<R, kDwords>(m.columns(0, D), 0, c * kDwords);
    return dwords.template bit_cast_view<T>();
  }
}

template <class T, int R, int C>
XF_INLINE void load(Left<T, R, C>& A, const Rows<const T>& m) {
  constexpr int kPart = R * Left<T, R, C>::kWidth;
  XF_UNROLL for (int c = 0; c < A.kColumns / A.kWidth; ++c) {
    A.x.template select<kPart, 1>(c * kPart) = load_left<T, R, C>(m, c);
  }
}

template <class T, int N>
XF_INLINE void negate(simd<T, N>& x) {
  x.template bit_cast_view<uint32_t>() ^= sizeof(T) == 2 ? 0x80008000u : 0x80000000u;
}
template <class T, int R, int C>
XF_INLINE void negate(Left<T, R, C>& A) {
  negate(A.x);
}

// R x C that stays in memory: too wide for registers beside O and S.
template <class T, int R, int C>
struct StreamedLeft {
  static constexpr int kWidth = Left<T, R, C>::kWidth, kColumns = Left<T, R, C>::kColumns;
  Rows<const T> memory = {};
  bool negative = false;

  XF_INLINE simd<T, 8 * kWidth> block(int r, int c) const {
    simd<T, 8 * kWidth> x = load_left<T, 8, C>(memory.from(r * 8), c);
    if (negative) xe::negate(x);
    return x;
  }
};
template <class T, int R, int C>
XF_INLINE void load(StreamedLeft<T, R, C>& A, const Rows<const T>& m) {
  A.memory = m;
}
template <class T, int R, int C>
XF_INLINE void negate(StreamedLeft<T, R, C>& A) {
  A.negative = true;
}

template <class T, int R, int C>
using Query =
    std::conditional_t<(R * C * sizeof(T) > kGrfBytes / 8), StreamedLeft<T, R, C>, Left<T, R, C>>;

// P = 2^(S * scale - m) in the type of V; l += row sums of P, before it is rounded.
template <int Degree, class T, int R, int C, class Sum>
XF_INLINE void exp2_and_sum(Left<T, R, C>& P, const Tile<R, C>& S, float scale, const ColVec<R>& m,
                            Sum& l) {
  ColSum<R> sum;
  XF_UNROLL for (int c = 0; c < S.kChunks; ++c) {
    simd<float, R * kLanes> p;
    XF_UNROLL for (int r = 0; r < R; ++r) {
      p.template select<kLanes, 1>(r * kLanes) = esimd::exp2(floats(S.row(r, c) * scale - m[r]));
    }
    if constexpr (sizeof(T) == 2 && kLanes != kDepth) {  // a row of P is two chunks
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

// ---- B = K^T ------------------------------------------------------------------------------------

// N rows of K. A chunk is 8 dwords of each of kLanes keys, [dword][key]: by a transposed 2D load,
// or a gather with a key a lane.
template <class T, int N, int D>
struct Keys {
  static_assert(N % kLanes == 0 && D % 8 == 0);
  Rows<const T> memory;
  static constexpr int kColumns = 32 / sizeof(T);  // of a chunk

  XF_INLINE explicit Keys(const Rows<const T>& m) : memory(m) {}

  // How the chunks of a product are read, one step of kColumns after the other.
  struct Stream {
    Rows<const T> memory;
    XF_INLINE explicit Stream(const Keys& K) : memory(K.memory) {}
    XF_INLINE void move_to(int) {}
    XF_INLINE simd<T, kColumns * kLanes> load(int step, int n) const {
      auto dwords = read_transposed<D>(memory, n * kLanes, step * 8);
      return dwords.template bit_cast_view<T>();
    }
  };
  struct Stream2d {
    BlockMessage<uint32_t, 8, kLanes> message;
    XF_INLINE explicit Stream2d(const Keys& K) : message(surface<D>(K.memory)) {}
    XF_INLINE void move_to(int step) { message.move_x(step * 8); }
    XF_INLINE simd<T, kColumns * kLanes> load(int, int n) {
      message.move_y(n * kLanes);
      auto dwords = message.load_transposed();
      return dwords.template bit_cast_view<T>();
    }
  };
  XF_INLINE auto stream() const {
    if constexpr (kAccess == Access::block2d)
      return Stream2d(*this);
    else
      return Stream(*this);
  }
};

// ---- B = V --------------------------------------------------------------------------------------

// N rows of V, in blocks of kRows x kColumns: 16-bit elements as pairs of rows, fp32 as rows.
template <class T, int N, int D>
struct Values {
  static_assert(N % kDepth == 0 && D % 8 == 0);
  static constexpr bool k2d = kAccess == Access::block2d, kPaired = sizeof(T) == 2;
  static constexpr int kRows = k2d && kPaired && N % 32 == 0 && D % 32 == 0 ? 32 : 16;
  static constexpr int kColumns = k2d && kPaired && D % 32 == 0 ? 32 : kPaired ? 16 : kLanes;
  Rows<const T> memory;

  XF_INLINE explicit Values(const Rows<const T>& m) : memory(m) {}

  struct Stream2d {
    static constexpr int kBlock = kPaired ? 16 : kLanes;
    BlockMessage<T, kBlock, kRows, kColumns / kBlock> message;
    XF_INLINE explicit Stream2d(const Values& V) : message(surface<D>(V.memory)) {}
    XF_INLINE auto load(int j, int n) {
      message.move_y(j * kRows);
      message.move_x(n * kColumns);
      if constexpr (kPaired)
        return message.load_vnni();
      else
        return message.load();
    }
  };

  // Two rows of 16 columns interleave to pairs: [row pair][column], kLanes columns after the other.
  struct Stream {
    Rows<const T> memory;
    XF_INLINE explicit Stream(const Values& V)
        : memory(V.memory.columns(0, at_most(V.memory.width, D))) {}
    XF_INLINE simd<T, kRows * kColumns> load(int j, int n) const {
      constexpr int kDwords = kColumns * sizeof(T) / 4;
      auto dwords = read_rows<kRows, kDwords>(memory, j * kRows, n * kDwords);
      simd<T, kRows * kColumns> rows = dwords.template bit_cast_view<T>();
      if constexpr (!kPaired) {
        return rows;
      } else {
        simd<T, kRows * kColumns> pairs;
        XF_UNROLL for (int b = 0; b < kColumns / kLanes; ++b) {
          XF_UNROLL for (int r = 0; r < kRows; ++r) {
            pairs.template select<kLanes, 2>((b * kRows + r / 2 * 2) * kLanes + r % 2) =
                part<kLanes>(rows, r * kColumns + b * kLanes);
          }
        }
        return pairs;
      }
    }
  };
  XF_INLINE auto stream() const {
    if constexpr (k2d)
      return Stream2d(*this);
    else
      return Stream(*this);
  }
};

// ---- ahead of time ------------------------------------------------------------------------------

// One of `Threads` threads' share of N rows of D columns, to the cache that they share: 32 rows of
// one cache line a message.
template <int Threads, int N, int D, class T>
XF_INLINE void prefetch(const Rows<const T>& m) {
  if constexpr (kAccess == Access::block2d) {
    constexpr int kColumns = 64 / sizeof(T), kRows = N < 32 ? N : 32;
    constexpr int kAcross = round_up(D, kColumns) / kColumns, kBlocks = N / kRows * kAcross;
    // 16 columns of 2 bytes are the widest single block
    constexpr int kSide = sizeof(T) == 2 ? 2 : 1;
    BlockMessage<T, kColumns / kSide, kRows, kSide> message(surface<D>(m));
    XF_UNROLL for (int i = 0; i < kBlocks; i += Threads) {
      const int block = i + thread_in_group();
      if (kBlocks % Threads != 0 && block >= kBlocks) break;
      message.move_y(block / kAcross * kRows);
      message.move_x(block % kAcross * kColumns);
      message.prefetch();
    }
  }
}

// ---- results ------------------------------------------------------------------------------------

template <class T, int R, int D>
XF_INLINE void store(const Rows<T>& m, const Tile<R, D>& O) {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  simd<T, R * Tile<R, D>::kColumns> values;
  if constexpr (sizeof(T) == 2)
    values = esimd::convert<T>(O.x);
  else
    values = O.x;
  auto bits = values.template bit_cast_view<Bits>();  // float stores convert values (2026.2)
  if constexpr (kAccess == Access::block2d) {
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
    XF_UNROLL for (int r = 0; r < R; ++r) {
      const int row = m.first + r;
      auto* first = reinterpret_cast<Bits*>(m.data + row * m.stride);
      XF_UNROLL for (int c = 0; c < O.kChunks; ++c) {
        const ints column = lane_index() + c * kLanes;
        const simd<Bits, kLanes> x = bits.template select<kLanes, 1>((c * R + r) * kLanes);
        esimd::scatter<Bits, kLanes>(first, simd<uint32_t, kLanes>(column * int(sizeof(T))), x,
                                     (column < columns) & (ints(row) < m.count));
      }
    }
  }
}

template <int R>
XF_INLINE void store(float* p, int count, const ColVec<R>& v) {
  const simd<uint32_t, R> row(0, 1);
  esimd::scatter<float, R>(p, simd<uint32_t, R>(row * 4u), v.x, simd<int32_t, R>(row) < count);
}

}  // namespace xeflash::xe
