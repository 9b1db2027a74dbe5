// V in nibbles as a right operand. It is multiplied as 16 + nibble, which is exact in 16 bits; P
// takes the scales, once for each unit of 64 columns.
#pragma once

#include "xe/mma.hpp"

namespace xeflash::xe {

// As Right: a chunk of 16 columns is nibble m of the words of a unit.
template <class T, int N, int D, class Block, int Begin>
  requires kNibbles<ElementOf<Block>>
struct Right<T, N, D, Block, Begin> {
  static_assert(sizeof(T) == 2 && N % kDepth == 0 && D % kUnitColumns == 0);
  using E = nibbles;
  using Numbers = Right<T, N, D, Rows<const T>, Begin>;  // which shared memory has
  static constexpr int kColumns = kUnitWords, kRows = Numbers::kRows, kUnits = D / kUnitColumns;
  static constexpr int kSharedBytes = Numbers::kSharedBytes;
  Block memory;

  XF_INLINE Right(const Block& m, Brought) : memory(m) {}
  XF_INLINE explicit Right(const Block& m) : memory(m) {
    stage(m);
    if constexpr (Group::staged) Group::meet();
  }
  static XF_INLINE void stage(const Block& m) {
    if constexpr (Group::staged) {
      constexpr int kPieceRows = Numbers::kPieceRows, kPieces = Group::team * kUnits;
      constexpr int kUnitBytes = sizeof(uint16_t) * kUnitWords, kRead = kUnitBytes / 4;
      constexpr int kPairs = kUnitWords / 2;  // dwords of 16 columns of T
      static_assert(Numbers::kPieceColumns == 2 * kUnitWords);
      const auto rows = elements(m);
      const auto inside = rows.columns(0, at_most(rows.width, kPieces * kUnitBytes));
      share<N / kPieceRows * kPieces>([&](int i) {
        const int row = i / kPieces * kPieceRows, unit = i % kPieces, dword = unit * kRead;
        const auto put_read = [&](const simd<uint32_t, kPieceRows * kRead>& words) {
          XF_UNROLL for (int m = 0; m < 4; m += 2) {
            simd<uint32_t, kPieceRows * 2 * kPairs> x;
            auto both = x.template bit_cast_view<uint32_t, kPieceRows, 2 * kPairs>();
            XF_UNROLL for (int k = 0; k < 2; ++k) {
              auto numbers = nibbles_plus_16<T>(words, m + k);
              both.template select<kPieceRows, 1, kPairs, 1>(0, k * kPairs) =
                  numbers.template bit_cast_view<uint32_t>();
            }
            Numbers::put(row, unit * kUnitColumns + m * kUnitWords, x);
          }
        };
        const bool there = row + kPieceRows <= inside.size();
        if (kAccess == Access::dwords && there && (unit + 1) * kUnitBytes <= inside.width)
          put_read(read_whole_rows<kPieceRows, kRead, true>(inside, row, dword));
        else
          put_read(read_rows<kPieceRows, kRead, true>(inside, row, dword));
      });
    }
  }
  using SharedStream = typename Numbers::SharedStream;

  // A message brings the words of a unit, with those of two keys in a dword.
  using Messages =
      xe::Messages<BlockMessage<uint16_t, kUnitWords, kRows>, N / kRows * kUnits, 4, 1>;
  static XF_INLINE int across(int i) { return i % kUnits * kUnitWords; }
  struct Stream2d {
    BlockReader<Messages, D / kPerElement<E>, Block> reader;
    simd<uint32_t, kRows * kUnitWords / 2> words;
    XF_INLINE explicit Stream2d(const Right& V) : reader(V.memory, across) {
      reader.messages.begin(reader.row);
    }
    template <int j, int n>
    XF_INLINE simd<T, kRows * kColumns> load() {
      constexpr int u = n / 4;
      if constexpr (n % 4 == 0) {
        auto loaded =
            reader.messages.template load<Form::paired, j * kUnits + u, u * kUnitWords, j * kRows>(
                reader.row);
        words = loaded.template bit_cast_view<uint32_t>();
      }
      return nibbles_plus_16<T>(words, n % 4);
    }
  };
  using Stream = std::conditional_t<Group::staged, SharedStream, Stream2d>;
};

// Reads the scales of a unit of N rows, from the first one on; those of rows that do not exist are
// 0, and so are those of units.
template <int N, class M>
XF_INLINE simd<float, N> read_unit_scales(const M& scales, int first, int unit) {
  simd<float, N> x;
  XF_UNROLL for (int i = 0; i < N; i += kLanes) {
    const LaneRows<M> rows(scales, first + i);
    const lane_mask there = (lane_index() < scales.size() - (first + i)) & (unit < scales.width);
    simd<uint16_t, kLanes> bits =
        esimd::gather<uint16_t, kLanes>(reinterpret_cast<const uint16_t*>(rows.base),
                                        rows.offsets + unit * 2, there, simd<uint16_t, kLanes>(0));
    x.template select<kLanes, 1>(i) =
        esimd::convert<float>(simd<f16, kLanes>(bits.template bit_cast_view<f16>()));
  }
  return x;
}

// The members of a team exchange parts of P in T.
template <class Probs, class E>
struct ProbsFor {
  using Type = Probs;
};
template <class T, int R, int C, int Width>
  requires(Group::team == 1)
struct ProbsFor<RegisterLeft<T, R, C, Width>, nibbles> {
  using Type = FloatProbs<T, R, C>;
};
template <class Probs, class E>
using ProbsOf = typename ProbsFor<Probs, E>::Type;

// Returns the columns of P from `first` on, each with its scale.
template <class T, int R, int N, int C>
XF_INLINE RegisterLeft<T, R, C> weighted(const RegisterLeft<T, R, N>& P, int first,
                                         const simd<float, C>& scales) {
  RegisterLeft<T, R, C> x{part<R * C>(P.x, R * first)};
  scale_columns_by(x, scales);
  return x;
}
template <class T, int R, int N, int C>
XF_INLINE RegisterLeft<T, R, C> weighted(const FloatProbs<T, R, N>& P, int first,
                                         const simd<float, C>& scales) {
  RegisterLeft<T, R, C> x;
  XF_UNROLL for (int c = 0; c < C / kLanes; ++c) {
    const auto chunk = part<R * kLanes>(P.x, R * (first + c * kLanes));
    put_chunk(x, c, scale_chunk(chunk, part<kLanes>(scales, c * kLanes)));
  }
  return x;
}

// Adds P, which has the scales of unit u, to the surplus of that unit. Operands for many units
// would take too many registers: then one serves all, and the first column of its product is moved.
template <class T, int R, int N, int D>
XF_INLINE void add_surplus(NibbleSums<R, D>& sums, const RegisterLeft<T, R, N>& P, int u) {
  constexpr bool kMoved = NibbleSums<R, D>::kUnits > 2;
  XF_UNROLL for (int r = 0; r < R / 8; ++r) {
    auto surplus = sums.surplus.block(r, 0);
    simd<float, 8 * kLanes> sum = surplus;
    XF_UNROLL for (int k = 0; k < N / kDepth; ++k) {
      multiply<T>(sum.template select<8 * kLanes, 1>(0), ones_in_column<T>(kMoved ? 0 : u),
                  P.block(r, k), kMoved && k == 0);
    }
    if constexpr (kMoved)
      surplus.template select<8, kLanes>(u) += sum.template select<8, kLanes>(0);
    else
      surplus = sum;
  }
}

// sums += P V, unit by unit
template <class Probs, class T, int R, int N, int D, class Block, int Begin>
XF_INLINE void mma_AB(NibbleSums<R, D>& sums, const Probs& P, const Right<T, N, D, Block, Begin>& V,
                      AllColumns = {}) {
  using Blocks = Right<T, N, D, Block, Begin>;
  constexpr int kRows = Blocks::kRows, kChunks = kUnitColumns / Blocks::kColumns;
  const int own = Group::staged ? Group::member() * Blocks::kUnits : 0;
  typename Blocks::Stream stream(V);
  in_steps<N / kRows>([&](auto at_rows) __attribute__((always_inline)) {
    constexpr int j = at_rows;
    in_steps<Blocks::kUnits>([&](auto at) __attribute__((always_inline)) {
      constexpr int u = at;
      const auto scales = read_unit_scales<kRows>(V.memory.scales, j * kRows, own + u);
      const auto weights =
          weighted(P, j * kRows, simd<float, kRows>(scales * kFactorUnit<nibbles>));
      add_surplus(sums, weights, u);
      add_block_products<Blocks, j, u * kChunks, kChunks, j * kRows>(sums.O, weights, stream);
    });
  });
}

}  // namespace xeflash::xe
