// The threads of a group, as the vocabulary knows them: here a group is one work-item.
#pragma once

#include "cpu/tile.hpp"

namespace xeflash::cpu {

// Nothing is shared, and all keys of a row are seen by one.
constexpr bool kStaged = false, kOnePlace = false, kInStep = false, kPairs = false;
constexpr bool kGroupsInParts = true;  // each core has groups that follow each other
constexpr int kNeighbours = 1, kTeam = 1, kKeyTurns = 1;
XF_INLINE int neighbour() { return 0; }
XF_INLINE int member() { return 0; }
XF_INLINE int of_pair() { return 0; }
XF_INLINE int key_turn() { return 0; }
template <class Tile>
constexpr int shared_bytes() {
  return 0;
}
template <class Output, int TileBytes>
XF_INLINE void allocate_shared() {}
template <class Output, class Max, class Sum, class Decay>
XF_INLINE void merge_turns(Output&, Max&, Sum&, const Decay&) {}
template <class Sum>
XF_INLINE void sum_of_team(Sum&) {}
XF_INLINE void meet_staged() {}
XF_INLINE void meet_team() {}
XF_INLINE void meet_pair() {}

}  // namespace xeflash::cpu
