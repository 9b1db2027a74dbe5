// The threads of a work-group: what each of them is there for, and where they meet.
#pragma once

#include "xe/vec.hpp"

namespace xeflash::xe {

struct Group {
  static constexpr int threads = XEFLASH_XE_THREADS;
  // Threads that take turns at the keys of the same rows. All others pass the same keys.
  static constexpr int turns = XEFLASH_XE_SPLIT_KEYS ? threads : 1;
  static constexpr int sharing = threads / turns;
  // Threads of a tile of rows, each of which scores some of the keys of a block, and owns some
  // columns of the result.
  static constexpr int team = XEFLASH_XE_TEAM;
  // Teams of the same rows: two, each of which does half of the work, or one.
  static constexpr int roles = XEFLASH_XE_PAIRS ? 2 : 1;
  // Tiles of rows, side by side.
  static constexpr int tiles = sharing / (team * roles);
  static_assert(tiles > 0 && threads == turns * tiles * team * roles && (turns == 1 || tiles == 1));

  // Without 2D block messages the threads that share their keys bring a tile into the layout of B
  // together, each a share, in shared local memory.
  static constexpr bool staged = kAccess != Access::block2d;
  // The values of a team, as wide as its threads' together, take the place of the keys.
  static constexpr bool one_place = staged && team > 1;
  // Whether they meet at each block, so that they have to come to the same ones.
  static constexpr bool in_step = staged || team * roles > 1;
  // A device takes groups in their order.
  static constexpr bool in_parts = false;

  // Of a launch, which has less than 2^32 groups: a division of 64 bits is a loop over bits here.
  using Index = uint32_t;
  static XF_INLINE Index index() {
    return sycl::ext::oneapi::this_work_item::get_nd_item<1>().get_group(0);
  }

  static XF_INLINE int thread() {
    return static_cast<int>(sycl::ext::oneapi::this_work_item::get_nd_item<1>().get_local_id(0));
  }
  static XF_INLINE int turn() { return turns > 1 ? thread() : 0; }
  static XF_INLINE int sharer() { return turns > 1 ? 0 : thread(); }
  static XF_INLINE int member() { return team > 1 ? thread() % team : 0; }
  static XF_INLINE int role() { return roles > 1 ? thread() / team % roles : 0; }
  static XF_INLINE int tile() { return sharer() / (team * roles); }

  static XF_INLINE void meet() {
    if constexpr (sharing > 1) esimd::barrier();
  }
  // Once each thread of a team has given its part of a tile.
  static XF_INLINE void meet_team() {
    if constexpr (team > 1) meet();
  }
  // Once one of a pair has handed a tile to the other.
  static XF_INLINE void meet_pair() {
    if constexpr (roles > 1) meet();
  }
  // Before tiles are staged in the place of others, and once they are: only then are they read.
  static XF_INLINE void meet_staged() {
    if constexpr (staged) meet();
  }
};

}  // namespace xeflash::xe
