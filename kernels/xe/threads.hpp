// The threads of a work-group: what each of them does, and the barriers where they meet.
#pragma once

#include "xe/vec.hpp"

namespace xeflash::xe {

struct Group {
  static constexpr int threads = XEFLASH_XE_THREADS;
  // Threads that take turns at the blocks of keys of the same rows. Threads of the same turn go
  // through the same keys: `sharing` of them.
  static constexpr int turns = XEFLASH_XE_TURNS;
  static constexpr int sharing = threads / turns;
  // Threads of a tile of rows: each scores some of the keys of a block, and owns some columns of
  // the result.
  static constexpr int team = XEFLASH_XE_TEAM;
  // Teams of a tile of rows: two, each of which does half of the work, or one.
  static constexpr int roles = XEFLASH_XE_PAIRS ? 2 : 1;
  // Tiles of rows of a group, side by side.
  static constexpr int tiles = sharing / (team * roles);
  static_assert(tiles > 0 && threads == turns * tiles * team * roles);

  // Without 2D block messages, the threads that go through the same keys stage each tile together:
  // each brings its share of it into shared local memory, in the layout of right operands.
  static constexpr bool staged = kAccess != Access::block2d;
  // True if V takes the place of K in shared memory: V of a team is as wide as the columns of all
  // its threads together.
  static constexpr bool one_place = staged && team > 1;
  // True if the threads of each tile have a barrier of their own. It is a named barrier, which
  // Xe-HPG lacks.
  static constexpr bool own_barriers = !staged && team * roles > 1 && tiles > 1;
  static_assert(!own_barriers || tiles < 32, "an Xe-core has 32 named barriers");
  // True if the threads meet at each block, so that all of them have to visit the same blocks.
  static constexpr bool in_step = staged || (team * roles > 1 && !own_barriers);
  static_assert(turns == 1 || team * roles == 1, "barriers are for all threads of a group");
  static_assert(turns == 1 || sharing == 1 || !staged, "and so a thread of a turn stages alone");
  // Bytes that the threads may bring into the caches before they use them: half of an Xe-core's L1
  // of 256 KiB (Arc B; the smallest of those that have 2D block messages), which holds 32 threads.
  static constexpr int ahead_bytes = threads * (128 << 10) / 32;
  // True if a core takes a run of consecutive groups. A GPU does not: it takes groups in the order
  // of their index.
  static constexpr bool in_parts = false;

  // Returns the index of a group in a launch, which has less than 2^32 groups: a 64-bit division is
  // a loop over bits on GPUs.
  using Index = uint32_t;
  static XF_INLINE Index index() {
    return sycl::ext::oneapi::this_work_item::get_nd_item<1>().get_group(0);
  }

  static XF_INLINE int thread() {
    return static_cast<int>(sycl::ext::oneapi::this_work_item::get_nd_item<1>().get_local_id(0));
  }
  static XF_INLINE int turn() { return turns > 1 ? thread() / sharing : 0; }
  static XF_INLINE int sharer() { return turns > 1 ? thread() % sharing : thread(); }
  static XF_INLINE int member() { return team > 1 ? thread() % team : 0; }
  static XF_INLINE int role() { return roles > 1 ? thread() / team % roles : 0; }
  static XF_INLINE int tile() { return sharer() / (team * roles); }

  // Prepares the barriers below. A kernel calls it once, before it calls any of them. A thread that
  // meets others waits there until all of them have come.
  static XF_INLINE void prepare() {
    if constexpr (own_barriers) esimd::named_barrier_init<tiles + 1>();  // 0 is that of the group
  }
  static XF_INLINE void meet() {
    if constexpr (sharing > 1) esimd::barrier();
  }
  // Waits for the threads of a tile.
  static XF_INLINE void meet_tile() {
    if constexpr (own_barriers) {
      constexpr int kBoth = 0, kThreads = team * roles;  // all of them signal, and all wait
      const auto id = static_cast<uint8_t>(tile() + 1);
      esimd::named_barrier_signal(id, kBoth, kThreads, kThreads);
      esimd::named_barrier_wait(id);
    } else {
      meet();
    }
  }
  static XF_INLINE void meet_turns() {
    if constexpr (turns > 1) esimd::barrier();
  }
  // Waits for the threads of a team. A thread calls it once it has given its part of a tile.
  static XF_INLINE void meet_team() {
    if constexpr (team > 1) meet_tile();
  }
  // Waits for both teams of a pair. They call it once one team has handed a tile to the other.
  static XF_INLINE void meet_pair() {
    if constexpr (roles > 1) meet_tile();
  }
  // Waits for the threads that stage tiles together. They call it before tiles are staged in the
  // place of others, and again once they are staged, because they may be read only then.
  static XF_INLINE void meet_staged() {
    if constexpr (staged) meet();
  }
};

}  // namespace xeflash::xe
