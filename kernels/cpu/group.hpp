// The group of threads that the vocabulary speaks of: on the CPU it is one work-item.
#pragma once

#include "cpu/tile.hpp"

namespace xeflash::cpu {

// Nothing is shared: one work-item goes through all keys of its rows.
struct Group {
  static constexpr int turns = 1, team = 1, roles = 1, tiles = 1;
  static constexpr bool staged = false, one_place = false, in_step = false;
  static constexpr bool in_parts = true;          // each core takes consecutive groups
  static constexpr int ahead_bytes = 0x7fffffff;  // cores have caches of their own
  using Index = uint64_t;                         // of a group in a launch
  static XF_INLINE Index index() {
    return sycl::ext::oneapi::this_work_item::get_nd_item<1>().get_group(0);
  }
  static XF_INLINE int turn() { return 0; }
  static XF_INLINE int member() { return 0; }
  static XF_INLINE int role() { return 0; }
  static XF_INLINE int tile() { return 0; }
  static XF_INLINE void meet_team() {}
  static XF_INLINE void meet_pair() {}
  static XF_INLINE void meet_staged() {}
};

template <class Tile>
constexpr int shared_bytes() {
  return 0;
}
template <class Output, int TileBytes>
XF_INLINE void allocate_shared() {}
template <class Output, class Max, class Sum, class Decay>
XF_INLINE void merge_turns(Output&, Max&, Sum&, const Decay&) {}

}  // namespace xeflash::cpu
