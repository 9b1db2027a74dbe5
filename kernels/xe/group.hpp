// The threads of a group stage tiles together in shared local memory, and merge there the results
// of threads that took turns at the keys.
#pragma once

#include "xe/threads.hpp"
#include "xe/tile.hpp"

namespace xeflash::xe {

// Blocks of `Dwords` dwords each in shared local memory, one after the other from byte `begin` on.
template <int Dwords>
struct SharedBlocks {
  uint32_t begin;
  XF_INLINE void store(int i, simd<uint32_t, Dwords> x) const {
    esimd::slm_block_store<uint32_t, Dwords>(begin + i * Dwords * 4, x);
  }
  XF_INLINE simd<uint32_t, Dwords> load(int i) const {
    return esimd::slm_block_load<uint32_t, Dwords>(begin + i * Dwords * 4);
  }
  // Returns blocks i to i + Count - 1. A message brings up to 512 bytes, and an odd one is its own.
  template <int Count>
  XF_INLINE simd<uint32_t, Count * Dwords> load_several(int i) const {
    constexpr int kPair = Count >= 2 && Dwords <= 64 ? 2 : 1;
    simd<uint32_t, Count * Dwords> x;
    XF_UNROLL for (int n = 0; n + kPair <= Count; n += kPair) {
      x.template select<kPair * Dwords, 1>(n * Dwords) =
          esimd::slm_block_load<uint32_t, kPair * Dwords>(begin + (i + n) * Dwords * 4);
    }
    if constexpr (Count % kPair != 0)
      x.template select<Dwords, 1>((Count - 1) * Dwords) = load(i + Count - 1);
    return x;
  }
};

// Bytes of shared local memory that a tile takes. A kernel plans where tiles lie, and tells each
// one where it begins.
template <class Tile>
constexpr int shared_bytes() {
  return Tile::kSharedBytes;
}

// ---- tiles --------------------------------------------------------------------------------------

// Calls f(i) for one thread's share of i = 0 .. Count - 1, which `Threads` threads divide up. A
// long loop is not unrolled: otherwise the loads of all iterations would want registers at once.
template <int Count, int Threads = Group::sharing, class F>
XF_INLINE void share(F f, int thread = Group::sharer()) {
  if constexpr (Count % Threads == 0 && Count / Threads <= 2) {
    XF_UNROLL for (int first = 0; first < Count; first += Threads) f(first + thread);
    return;
  }
  _Pragma("unroll 1") for (int first = 0; first + Threads <= Count; first += Threads) {
    f(first + thread);
  }
  if constexpr (Count % Threads != 0) {
    const int i = Count / Threads * Threads + thread;
    if (i < Count) f(i);
  }
}

// ---- turns at the keys --------------------------------------------------------------------------

// O in blocks of registers, as it goes through shared memory: so many columns of each row, or of
// one row. `row` is the one that a part of a block belongs to.
template <class Output>
struct OutputBlocks;
template <int R, int D>
struct OutputBlocks<Tile<R, D>> {
  static constexpr int kRows = R, kCount = Tile<R, D>::kChunks, kParts = R, kPart = kLanes;
  static constexpr int row(int, int part) { return part; }
};

// The place where a thread leaves its m and l, and then its O, piece by piece, for another thread.
template <class Output>
struct Handover {
  using Blocks = OutputBlocks<Output>;
  static constexpr int R = Blocks::kRows, kValues = R > 4 ? round_up(R, 8) : 4;
  static constexpr int kFloats = Blocks::kParts * Blocks::kPart;  // of a block
  // A piece takes a quarter of the registers at most: half of the threads of a core then leave no
  // more than half of the shared memory that it has.
  static constexpr int kMostBlocks = kGrfBytes / 4 / (kFloats * 4);
  static constexpr int kPieces = (Blocks::kCount + kMostBlocks - 1) / kMostBlocks;
  static constexpr int kPieceBlocks = (Blocks::kCount + kPieces - 1) / kPieces;
  static constexpr int kBytes = (kPieceBlocks * kFloats + 2 * kValues) * 4;
  static constexpr int kSharedBytes = Group::turns / 2 * Group::tiles * kBytes;
  uint32_t begin;

  XF_INLINE explicit Handover(int turn) : begin((turn * Group::tiles + Group::tile()) * kBytes) {}
  XF_INLINE auto blocks() const { return SharedBlocks<kFloats>{begin}; }
  XF_INLINE auto values() const {
    return SharedBlocks<kValues>{begin + kPieceBlocks * kFloats * 4};
  }

  XF_INLINE void give(ColVec<R> m, ColVec<R> l) const {
    const auto padded = [](const simd<float, R>& x) {
      simd<float, kValues> all = 0.f;
      all.template select<R, 1>(0) = x;
      return simd<uint32_t, kValues>(all.template bit_cast_view<uint32_t>());
    };
    values().store(0, padded(m.x));
    values().store(1, padded(l.x));
  }
  XF_INLINE void take(ColVec<R>& m, ColVec<R>& l) const {
    auto m_bits = values().load(0), l_bits = values().load(1);
    m.x = simd<float, kValues>(m_bits.template bit_cast_view<float>()).template select<R, 1>(0);
    l.x = simd<float, kValues>(l_bits.template bit_cast_view<float>()).template select<R, 1>(0);
  }
  XF_INLINE void give(const Output& O, int piece) const {
    each_block(piece, [&](int i, int slot) {
      auto block = part<kFloats>(O.x, i * kFloats);
      blocks().store(slot, block.template bit_cast_view<uint32_t>());
    });
  }
  // O = a O + b O2
  XF_INLINE void take(Output& O, int piece, const ColVec<R>& a, const ColVec<R>& b) const {
    constexpr int kPart = Blocks::kPart;
    each_block(piece, [&](int i, int slot) {
      auto bits = blocks().load(slot);
      const simd<float, kFloats> O2 = bits.template bit_cast_view<float>();
      XF_UNROLL for (int c = 0; c < Blocks::kParts; ++c) {
        const int row = Blocks::row(i, c);
        auto own = O.x.template select<kPart, 1>(i * kFloats + c * kPart);
        own = simd<float, kPart>(own) * a[row] + part<kPart>(O2, c * kPart) * b[row];
      }
    });
  }

 private:
  template <class F>
  static XF_INLINE void each_block(int piece, F f) {
    XF_UNROLL for (int slot = 0; slot < kPieceBlocks; ++slot) {
      if (piece * kPieceBlocks + slot < Blocks::kCount) f(piece * kPieceBlocks + slot, slot);
    }
  }
};

// In each step half of the threads hand over to the other half, until those of the first turn have
// merged everything: O = exp(m - m') O + exp(m2 - m') O2 with m' = max(m, m2); l likewise.
template <class Output, int R, class Decay>
XF_INLINE void merge_turns(Output& O, ColVec<R>& m, ColSum<R>& l, const Decay& decay) {
  if constexpr (Group::turns > 1) {
    static_assert((Group::turns & (Group::turns - 1)) == 0);
    using Place = Handover<Output>;
    ColVec<R> sum = l;
    const int turn = Group::turn();
    _Pragma("unroll 1") for (int half = Group::turns / 2; half > 0; half /= 2) {
      const bool gives = turn >= half && turn < 2 * half, takes = turn < half;
      const Place place(gives ? turn - half : turn);
      ColVec<R> a, b;
      XF_UNROLL for (int piece = 0; piece < Place::kPieces; ++piece) {
        Group::meet_turns();
        if (gives) {
          if (piece == 0) place.give(m, sum);
          place.give(O, piece);
        }
        Group::meet_turns();
        if (takes) {
          if (piece == 0) {
            ColVec<R> m2, sum2;
            place.take(m2, sum2);
            const ColVec<R> m_new = max(m, m2);
            a = decay(m, m_new), b = decay(m2, m_new);
            sum.x = sum.x * a.x + sum2.x * b.x;
            m = m_new;
          }
          place.take(O, piece, a, b);
        }
      }
    }
    l = sum;
  }
}

// ---- its size -----------------------------------------------------------------------------------

template <class Output>
constexpr int handover_bytes() {
  if constexpr (Group::turns > 1)
    return Handover<Output>::kSharedBytes;
  else
    return 0;
}

// Allocates enough for the tiles, and for the handover of O, which takes their place at the end.
template <class Output, int TileBytes>
XF_INLINE void allocate_shared() {
  constexpr int kMerge = handover_bytes<Output>(), kBytes = TileBytes > kMerge ? TileBytes : kMerge;
  static_assert(kBytes <= kMostSharedBytes, "the tiles do not fit in shared memory");
  if constexpr (kBytes > 0) esimd::slm_init<kBytes>();
  Group::prepare();
}

}  // namespace xeflash::xe
