// Left operands of products: 16-bit operands in the layout of dpas, rows of 16 elements; fp32
// operands for the vector unit, in the layout of tiles.
#pragma once

#include "xe/group.hpp"
#include "xe/message.hpp"

namespace xeflash::xe {

constexpr int kDepth = 16;  // of one dpas, in 16-bit elements

// An R x C operand in registers: x[column / kWidth][row][kWidth columns]. A smaller Width is for
// one thread's part of a block.
template <class T, int R, int C, int Width = sizeof(T) == 2 ? kDepth : kLanes>
struct RegisterLeft {
  static constexpr int kR = R, kC = C;
  static constexpr int kWidth = Width, kColumns = round_up(C, kWidth);
  static constexpr int kSharedBytes = 0;
  static_assert(R % 8 == 0);
  simd<T, R * kColumns> x;

  // Returns 8 rows x kWidth columns.
  XF_INLINE simd<T, 8 * kWidth> block(int r, int c) const {
    return part<8 * kWidth>(x, (c * R + r * 8) * kWidth);
  }
  // A product reads the operand with this object; move_to<column>() says which columns it takes
  // next.
  struct Stream {
    const RegisterLeft& A;
    XF_INLINE explicit Stream(const RegisterLeft& a) : A(a) {}
    template <int kColumn>
    XF_INLINE void move_to() {}
    XF_INLINE auto block(int r, int column) const { return A.block(r, column / kWidth); }
  };
  static constexpr int offset(int row, int column) {
    return (column / kWidth * R + row) * kWidth + column % kWidth;
  }
};

// Loads R rows x kWidth columns of a matrix, from column `c * kWidth` on.
template <class T, int R, int D, class Rows>
XF_INLINE simd<T, R * RegisterLeft<T, R, D>::kWidth> load_left(const Rows& m, int c) {
  constexpr int kWidth = RegisterLeft<T, R, D>::kWidth;
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
XF_INLINE void load(RegisterLeft<T, R, C>& A, const Rows& m) {
  constexpr int kPart = R * RegisterLeft<T, R, C>::kWidth;
  XF_UNROLL for (int c = 0; c < A.kColumns / A.kWidth; ++c) {
    A.x.template select<kPart, 1>(c * kPart) = load_left<T, R, C>(m, c);
  }
}

// A tile has the layout of a left operand of fp32.
template <int R, int C>
XF_INLINE void load(Tile<R, C>& t, const Rows<const float>& m) {
  RegisterLeft<float, R, C> x;
  load(x, m);
  t.x = x.x;
}

// An R x C operand that stays in memory, because it is too wide for registers beside O and S.
template <class T, int R, int C>
struct StreamedLeft {
  static constexpr int kWidth = RegisterLeft<T, R, C>::kWidth;
  static constexpr int kSharedBytes = 0;
  Rows<const T> memory = {};

  // Loads 64 bytes (a cache line) of columns of all rows at a time.
  struct Stream {
    static constexpr int kAcross = 64 / sizeof(T) / kWidth, kColumns = kAcross * kWidth;
    static constexpr int kCount = round_up(C, kColumns) / kColumns;
    Messages<BlockMessage<T, kWidth, R, kAcross>, kCount, 4, 2> messages;
    simd<T, R * kColumns> columns;

    XF_INLINE explicit Stream(const StreamedLeft& A)
        : messages(surface<C>(A.memory), [](int i) { return i * kColumns; }) {}
    template <int kColumn>
    XF_INLINE void move_to() {
      if constexpr (kColumn % kColumns == 0)
        columns = messages.template load<Form::plain, kColumn / kColumns, kColumn, 0>(0);
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

// An R x C operand that is brought into the layout of dpas once, in shared memory from `Begin` on.
// Each team has its own copy; the threads that take turns at the keys of a tile have one copy
// together.
template <class T, int R, int C, int Begin>
struct SharedLeft {
  static constexpr int kWidth = RegisterLeft<T, R, C>::kWidth,
                       kColumns = RegisterLeft<T, R, C>::kColumns;
  static constexpr int kBytes = R * kColumns * sizeof(T);
  static constexpr int kSharedBytes = Group::tiles * kBytes;
  static constexpr int kDwords = 8 * kWidth * sizeof(T) / 4;

  static XF_INLINE SharedBlocks<kDwords> shared() {
    return {static_cast<uint32_t>(Begin + Group::tile() * kBytes)};
  }
  struct Stream {
    simd<uint32_t, R / 8 * kDwords> blocks;
    XF_INLINE explicit Stream(const SharedLeft&) {}
    template <int kColumn>
    XF_INLINE void move_to() {
      if constexpr (kColumn % kWidth == 0)
        blocks = shared().template load_several<R / 8>(kColumn / kWidth * (R / 8));
    }
    XF_INLINE simd<T, 8 * kWidth> block(int r, int) const {
      simd<uint32_t, kDwords> dwords = part<kDwords>(blocks, r * kDwords);
      return dwords.template bit_cast_view<T>();
    }
  };
};
template <class T, int R, int C, class Rows, int Begin>
XF_INLINE void load(SharedLeft<T, R, C, Begin>& A, const Rows& m) {
  const auto put = [&](int c) {
    XF_UNROLL for (int r = 0; r < R / 8; ++r) {
      auto x = load_left<T, 8, C>(m.from(r * 8), c);
      A.shared().store(c * (R / 8) + r, x.template bit_cast_view<uint32_t>());
    }
  };
  using Whole = SharedLeft<T, R, C, Begin>;
  if (Group::turn() == 0) share<Whole::kColumns / Whole::kWidth, Group::team>(put, Group::member());
  Group::meet_turns();
  if constexpr (!Group::staged) Group::meet_team();  // else they meet once K is staged, too
}

// Chooses the type of a left operand by the place where it is kept.
template <class T, int R, int C, class Where>
struct LeftAt {
  using Type = RegisterLeft<T, R, C>;
};
template <class T, int R, int C>
  requires(sizeof(T) == 2 && C < kDepth)
struct LeftAt<T, R, C, TeamPart> {
  using Type = RegisterLeft<T, R, C, kLanes>;
};
template <class T, int R, int C, class Rows, int Begin, int Beside, int SumBytes>
struct LeftAt<T, R, C, Placed<Rows, Begin, Beside, SumBytes>> {
  static constexpr int kBytes = R * C * sizeof(T);
  static constexpr bool kIsSmall = kBytes <= kGrfBytes / 8 && kBytes + Beside <= kGrfBytes * 3 / 4;
  static constexpr bool kFitsBesideSums =
      SumBytes > 0 && Group::roles > 1 && Group::team == 1 && SumBytes + kBytes <= kGrfBytes / 2;
  using Away =
      std::conditional_t<kReadsBlocks<Rows>, StreamedLeft<T, R, C>, SharedLeft<T, R, C, Begin>>;
  using Type = std::conditional_t<kIsSmall || kFitsBesideSums, RegisterLeft<T, R, C>, Away>;
};
template <class T, int R, int C, class Where = InRegisters>
using Left = typename LeftAt<T, R, C, Where>::Type;

// Puts chunk c of a tile into the columns of a left operand.
template <class T, int R, int C, int Width>
XF_INLINE void put_chunk(RegisterLeft<T, R, C, Width>& P, int c, simd<float, R * kLanes> p) {
  if constexpr (kLanes < Width) {  // kWidth columns of P are two chunks
    XF_UNROLL for (int r = 0; r < R; ++r) {
      P.x.template select<kLanes, 1>(P.offset(r, c * kLanes)) =
          esimd::convert<T>(part<kLanes>(p, r * kLanes));
    }
  } else if constexpr (sizeof(T) == 2) {
    P.x.template select<R * kLanes, 1>(c * R * kLanes) = esimd::convert<T>(p);
  } else {
    P.x.template select<R * kLanes, 1>(c * R * kLanes) = p;
  }
}
template <class T, int R, int C, int Width>
XF_INLINE void narrow(RegisterLeft<T, R, C, Width>& P, const Tile<R, C>& S) {
  XF_UNROLL for (int c = 0; c < S.kChunks; ++c) put_chunk(P, c, S.chunk(c));
}

// P = 2^X in the type of V; l += row sums of P before it is rounded.
template <int Degree, class T, int R, int C, int Width, class Sum>
XF_INLINE void exp2_and_sum(RegisterLeft<T, R, C, Width>& P, const Tile<R, C>& X, Sum& l) {
  ColSum<R> sum;
  XF_UNROLL for (int c = 0; c < X.kChunks; ++c) {
    simd<float, R * kLanes> p;
    XF_UNROLL for (int i = 0; i < R * kLanes; i += 32) {
      p.template select<32, 1>(i) = esimd::exp2(part<32>(X.x, c * R * kLanes + i));
    }
    put_chunk(P, c, p);
    sum.x = c == 0 ? p : simd<float, R * kLanes>(sum.x + p);
  }
  l += sum;
}

// Multiplies the columns of rows of a chunk by f.
template <int N>
XF_INLINE simd<float, N> scale_chunk(simd<float, N> rows, floats f) {
  const wide_floats factors = f.template replicate_vs_w<kRowsAtOnce, 0, kLanes>(0);
  XF_UNROLL for (int i = 0; i < N; i += 32) rows.template select<32, 1>(i) *= factors;
  return rows;
}

// Multiplies column j by the value of row j of `factors`, and by `unit`.
template <int R, int C, class Factors>
XF_INLINE void scale_columns(Tile<R, C>& t, const Factors& factors, float unit = 1.f) {
  XF_UNROLL for (int c = 0; c < t.kChunks; ++c) {
    const floats f = read_values<kLanes>(factors, c * kLanes) * unit;
    t.x.template select<R * kLanes, 1>(c * R * kLanes) = scale_chunk(t.chunk(c), f);
  }
}
template <template <int, int> class AnyTile, int R, int C, class Factors>
XF_INLINE void scale_columns(AnyTile<R, C>& t, const Factors& factors, float unit = 1.f) {
  XF_UNROLL for (int c = 0; c < t.kChunks; ++c) {
    const floats f = read_values<kLanes>(factors, c * kLanes) * unit;
    XF_UNROLL for (int r = 0; r < R; ++r) t.row(r, c) *= f;
  }
}
template <class T, int R, int C>
XF_INLINE void scale_columns_by(RegisterLeft<T, R, C>& P, const simd<float, C>& factors) {
  constexpr int kWidth = RegisterLeft<T, R, C>::kWidth;
  XF_UNROLL for (int c = 0; c < C; c += kWidth) {
    const simd<float, kWidth> f = part<kWidth>(factors, c);
    XF_UNROLL for (int r = 0; r < R; ++r) {
      auto row = P.x.template select<kWidth, 1>(P.offset(r, c));
      row = esimd::convert<T>(simd<float, kWidth>(esimd::convert<float>(simd<T, kWidth>(row)) * f));
    }
  }
}
template <class T, int R, int C, class Factors>
XF_INLINE void scale_columns(RegisterLeft<T, R, C>& P, const Factors& factors, float unit) {
  scale_columns_by(P, simd<float, C>(read_values<C>(factors, 0) * unit));
}

// P in fp32 beside queries of type T, until it is multiplied by the scales of V.
template <class T, int R, int C>
struct FloatProbs : RegisterLeft<float, R, C> {};

}  // namespace xeflash::xe
