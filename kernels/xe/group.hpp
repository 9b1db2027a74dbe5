// What the threads of a group do together in shared local memory: stage tiles, and merge the
// results of threads that took turns at the keys.
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
};

// Bytes of shared local memory that a tile takes. A kernel plans where tiles lie, and tells each
// one where it begins.
template <class Tile>
constexpr int shared_bytes() {
  return Tile::kSharedBytes;
}

// ---- tiles --------------------------------------------------------------------------------------

// Calls f(i) for one thread's share of i = 0 .. Count - 1, which `Threads` threads divide up. The
// loop is not unrolled: otherwise the loads of all iterations would want registers at once.
template <int Count, int Threads = Group::sharing, class F>
XF_INLINE void share(F f, int thread = Group::sharer()) {
  _Pragma("unroll 1") for (int first = 0; first + Threads <= Count; first += Threads) {
    f(first + thread);
  }
  if constexpr (Count % Threads != 0) {
    const int i = Count / Threads * Threads + thread;
    if (i < Count) f(i);
  }
}

// ---- turns at the keys --------------------------------------------------------------------------

// The place where a thread leaves its O, m and l for another thread.
template <int R, int D>
struct Handover {
  static constexpr int kChunks = Tile<R, D>::kChunks;
  static constexpr int kBytes = (Tile<R, D>::kColumns + 2) * R * 4;
  static constexpr int kSharedBytes = Group::turns / 2 * kBytes;
  uint32_t begin;

  XF_INLINE explicit Handover(int slot) : begin(slot * kBytes) {}
  XF_INLINE auto chunks() const { return SharedBlocks<R * kLanes>{begin}; }
  XF_INLINE auto rows() const { return SharedBlocks<R>{begin + kChunks * R * kLanes * 4}; }

  XF_INLINE void give(const Tile<R, D>& O, ColVec<R> m, ColVec<R> l) const {
    XF_UNROLL for (int c = 0; c < kChunks; ++c) {
      auto chunk = O.chunk(c);
      chunks().store(c, chunk.template bit_cast_view<uint32_t>());
    }
    rows().store(0, m.x.template bit_cast_view<uint32_t>());
    rows().store(1, l.x.template bit_cast_view<uint32_t>());
  }
  // O = exp(m - m') O + exp(m2 - m') O2 with m' = max(m, m2); l likewise.
  template <class Decay>
  XF_INLINE void take(Tile<R, D>& O, ColVec<R>& m, ColVec<R>& l, const Decay& decay) const {
    auto m_bits = rows().load(0), l_bits = rows().load(1);
    const ColVec<R> m2(m_bits.template bit_cast_view<float>());
    const ColVec<R> l2(l_bits.template bit_cast_view<float>());
    const ColVec<R> m_new = max(m, m2), a = decay(m, m_new), b = decay(m2, m_new);
    XF_UNROLL for (int c = 0; c < kChunks; ++c) {
      auto bits = chunks().load(c);
      const simd<float, R * kLanes> O2 = bits.template bit_cast_view<float>();
      XF_UNROLL for (int r = 0; r < R; ++r) {
        O.row(r, c) = floats(O.row(r, c)) * a[r] + part<kLanes>(O2, r * kLanes) * b[r];
      }
    }
    l.x = l.x * a.x + l2.x * b.x;
    m = m_new;
  }
};

// In each step half of the threads hand over to the other half, until the first thread has merged
// everything.
template <int R, int D, class Decay>
XF_INLINE void merge_turns(Tile<R, D>& O, ColVec<R>& m, ColSum<R>& l, const Decay& decay) {
  if constexpr (Group::turns > 1) {
    static_assert((Group::turns & (Group::turns - 1)) == 0);
    ColVec<R> sum = l;
    const int turn = Group::turn();
    _Pragma("unroll 1") for (int half = Group::turns / 2; half > 0; half /= 2) {
      esimd::barrier();
      if (turn >= half && turn < 2 * half) Handover<R, D>(turn - half).give(O, m, sum);
      esimd::barrier();
      if (turn < half) Handover<R, D>(turn).take(O, m, sum, decay);
    }
    l = sum;
  }
}

// ---- its size -----------------------------------------------------------------------------------

template <class Output>
constexpr int kHandoverBytes = 0;
template <int R, int D>
constexpr int kHandoverBytes<Tile<R, D>> = Group::turns > 1 ? Handover<R, D>::kSharedBytes : 0;

// Allocates enough for the tiles, and for the handover of O, which takes their place at the end.
template <class Output, int TileBytes>
XF_INLINE void allocate_shared() {
  constexpr int kMerge = kHandoverBytes<Output>, kBytes = TileBytes > kMerge ? TileBytes : kMerge;
  static_assert(kBytes <= kMostSharedBytes, "the tiles do not fit in shared memory");
  if constexpr (kBytes > 0) esimd::slm_init<kBytes>();
}

}  // namespace xeflash::xe
