// What kernels call of a Mask. Each kernel requires a concept of this file, so that the compiler
// names a member that a Mask lacks. A Mask inherits from Window and hides more keys. It has to
// replace the members that are marked `own`: Window's k_blocks, for example, would call a block
// full in which hide_in hides scores. The compiler sees whether it does, but for hide_in, whose
// template parameters are a Mask's own.
//
// Row q and key q + shift have the same position. Rows and keys that are given may lie past the end
// of the sequence: a Mask that reads memory at them goes no further than the last one.
//
// All kernels but flash_decode:
//
//   (p, seq, head)        the constructor; masks that are the same for all heads leave out `head`
//   hide                  returns s, or -inf if the window hides the key; masks keep Window's, but
//                         a Tree, which has no window, and Listed, whose hide_in hides these keys
//   hide_in               own: sets other scores of a tile to -inf; Window's sets none. The tile
//                         begins at `row` and `column`; query(r) is the query of row r
//   k_blocks              own: returns the blocks of keys that some rows see; flash_bwd_dkv has
//                         q_blocks in its place
//   Blocks                their type: BlockRange, unless blocks in between are skipped
//     begin, end, next    the first block; the end; the first visible one of j, j + step, ...
//     is_full             whether no score of a block is hidden: hide and hide_in are not called
//
// flash_fwd:
//
//   seen_up_to            returns the end of the keys that a row sees: later keys of a block are
//                         not multiplied, and `hide` or hide_in hides them. Window's may be too
//                         large for a Mask: this takes time
//     first, last         all visible keys are in [first, last): a cache may have no others
//     keep_share          keeps one split's share of the blocks
//
// flash_bwd*, attention_probs:
//
//   q_blocks              own: returns the blocks of rows that see some keys, for flash_bwd_dkv and
//                         flash_bwd
//   hide_in<true>         own, for these two: hide_in of a tile whose rows are keys
//     has                 whether a block is visible
//     only, is_empty      returns the range of that block alone, or an empty one; whether it is
//                         empty: for flash_bwd_bias
//     have_none_full      makes no block full, for flash_bwd
//
// flash_decode, which has one row:
//
//   keys_of_split         own: returns the keys of one split, which begin at a multiple of Bc
//   Keys                  their type: KeyRange, unless keys in between are hidden
//     begin, end, next    as those of Blocks; but a block is known by its first key
//     seen_from           the first visible key
//     is_full             whether no score of a block is hidden: hide_row is not called
//   hide_row              own if Keys is: sets scores of a block to -inf; Window's sets those of
//                         keys outside the range
#pragma once

#include <concepts>

#include "attention/mask.hpp"

namespace xeflash {

template <class X>
concept Position = std::convertible_to<X, int>;

template <class M>
concept MadeOfParams = requires(const FwdParams& p, const Sequence& seq) { M(p, seq, 0); };

// Whether a Mask has these members of its own.
template <class M>
concept OwnKeyBlocks =
    std::same_as<M, Window> ||
    !std::same_as<decltype(&M::template k_blocks<32>), decltype(&Window::k_blocks<32>)>;
template <class M>
concept OwnRowBlocks =
    std::same_as<M, Window> ||
    !std::same_as<decltype(&M::template q_blocks<32>), decltype(&Window::q_blocks<32>)>;
template <class M>
concept OwnKeys = std::same_as<M, Window> ||
                  !std::same_as<decltype(&M::keys_of_split), decltype(&Window::keys_of_split)>;

template <class B>
concept VisibleBlocks = requires(const B& blocks, int j) {
  { blocks.begin } -> Position;
  { blocks.end } -> Position;
  { blocks.next(j, 1) } -> Position;
  { blocks.is_full(j) } -> std::same_as<bool>;
};

template <class M>
concept TileMask = MadeOfParams<M> && VisibleBlocks<typename M::Blocks> &&
                   requires(const M& mask, Floats s, Ints k, Tile<16, 32>& S, Ints (*query)(Ints)) {
                     { mask.hide(s, 0, k) } -> std::same_as<Floats>;
                     mask.template hide_in<false>(S, 0, 0, query);
                     { mask.template k_blocks<32>(0, 0) } -> std::same_as<typename M::Blocks>;
                   } && OwnKeyBlocks<M>;

template <class M>
concept ForwardMask = TileMask<M> && requires(const M& mask, typename M::Blocks blocks) {
  { mask.seen_up_to(0) } -> Position;
  { blocks.first } -> Position;
  { blocks.last } -> Position;
  blocks.keep_share(0, 1);
};

template <class M>
concept BackwardMask =
    TileMask<M> &&
    requires(const M& mask, typename M::Blocks blocks, Tile<16, 32>& S, Ints (*query)(Ints)) {
      mask.template hide_in<true>(S, 0, 0, query);
      { mask.template q_blocks<32>(0, 0) } -> std::same_as<typename M::Blocks>;
      { blocks.has(0) } -> std::same_as<bool>;
      { blocks.only(0) } -> std::same_as<typename M::Blocks>;
      { blocks.is_empty() } -> std::same_as<bool>;
      blocks.have_none_full();
    } && OwnRowBlocks<M>;

template <class K>
concept VisibleKeys = requires(const K& keys, int key) {
  { keys.begin } -> Position;
  { keys.end } -> Position;
  { keys.next(key, 32, 32) } -> Position;
  { keys.seen_from } -> Position;
  { keys.is_full(key, 32) } -> std::same_as<bool>;
};

template <class M>
concept DecodeMask = MadeOfParams<M> && VisibleKeys<typename M::Keys> &&
                     requires(const M& mask, const typename M::Keys& keys, RowTile<8, 32>& S) {
                       { mask.keys_of_split(0, 1, 32) } -> std::same_as<typename M::Keys>;
                       mask.hide_row(S, keys, 0);
                     } && OwnKeys<M>;

}  // namespace xeflash
