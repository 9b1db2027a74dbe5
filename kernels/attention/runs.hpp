// The tiles of a Mask that leaves some of them out. It divides positions into units of 2^shift, and
// says of each unit, for the rows (or keys) of the other side, whether some of them see keys (or
// rows) of it, and whether all of them see all. Tiles of one kind that follow each other are a run,
// which is found once: in a run each step costs a comparison.
#pragma once

#include "attention/mask.hpp"

namespace xeflash {

// Two bits of each of 32 units.
struct UnitBits {
  uint32_t some, all;
};

// The tiles of `size` positions, of which tile 0 begins at position `at`. Units has `shift` and
// of_word(i), which returns the UnitBits of the units 32 i and later; bits are 0 past the last one.
template <class Units>
struct BlockRuns : private BlockRange {
  Units units;
  int size, at;

  XF_INLINE BlockRuns(const BlockRange& range, const Units& units, int size, int at = 0)
      : BlockRange(range), units(units), size(size), at(at) {}
  using BlockRange::begin, BlockRange::end, BlockRange::first, BlockRange::last;
  using BlockRange::is_empty, BlockRange::keep_share;

  XF_INLINE int next(int j, int stride) const {
    while (!in_run(j) && j < end) {
      find_run(j);
      j += (larger(from - j, 0) + stride - 1) / stride * stride;
    }
    return j;
  }
  XF_INLINE bool has(int j) const {
    if (!BlockRange::has(j)) return false;
    if (!in_run(j)) find_run(j);
    return in_run(j);
  }
  XF_INLINE BlockRuns only(int j) const {
    return {BlockRange::only(has(j) ? j : end), units, size, at};
  }
  XF_INLINE bool is_full(int j) const {
    if (!in_run(j)) find_run(j);
    return full_run && in_run(j);
  }
  XF_INLINE void have_none_full() {
    BlockRange::have_none_full();
    count = 0;
  }

 private:
  mutable int from = 0, count = 0;  // the first tile of the run; its tiles
  mutable bool full_run = false;
  mutable int word = -1;  // of which `bits` are
  mutable UnitBits bits{};

  XF_INLINE bool in_run(int j) const {
    return static_cast<uint32_t>(j - from) < static_cast<uint32_t>(count);
  }
  // Makes the run that of the first tile from j on of which something is seen. There is no tile in
  // it, and it begins at the end, if there is none.
  XF_INLINE void find_run(int j) const {
    int unit = (at + j * size) >> units.shift;
    const int last_unit = (at + end * size - 1) >> units.shift;
    uint32_t some = 0;
    for (; unit <= last_unit; unit = (unit | 31) + 1) {
      take_word(unit >> 5);
      some = bits.some >> (unit & 31);
      if (some) break;
    }
    from = end;
    count = 0;
    if (!some) return;
    unit += lowest_bit(some);
    some = bits.some >> (unit & 31);
    const uint32_t all = bits.all >> (unit & 31);
    from = larger(j, ((unit << units.shift) - at) / size);
    // A tile that begins before the unit holds others, of which nothing is seen.
    full_run = (all & 1) && at + from * size >= unit << units.shift;
    const uint32_t others = ~(full_run ? all & some : some & ~all);
    const int units_of_run = others ? lowest_bit(others) : 32;
    int until = (((unit + units_of_run) << units.shift) - at) / size;
    if (full_run) {  // as far as positions hide nothing
      const bool is_before = from < full_begin;
      full_run = !is_before && from < at_most(until, full_end);
      if (full_run || is_before) until = at_most(until, is_before ? full_begin : full_end);
    }
    count = larger(at_most(until, end) - from, 1);
  }
  XF_INLINE void take_word(int i) const {
    if (i == word) return;
    word = i;
    bits = units.of_word(i);
  }
  static XF_INLINE int lowest_bit(uint32_t x) { return __builtin_ctz(x); }
};

}  // namespace xeflash
