// Weights in memory: one row per output, of plain or quantised elements. A quantised element q
// stands for s (q - z), with a scale s and a zero z per output and group of inputs.
#pragma once

#include <type_traits>

#include "products/params.hpp"
#include "tile/quantised.hpp"
#include "tile/rows.hpp"

namespace xeflash {

// Two weights of 4 bits. A unit of 64 bytes has the weights of 128 inputs: its dword d has input
// 32 m + 2 d in bits 4 m .. 4 m + 3, and the next input 16 bits above.
struct packed4 {
  uint8_t bits;
};
constexpr int kUnitInputs = 128, kUnitBytes = 64, kPartInputs = 32;

// The rows of W from an output on. E: the type of elements; Scale: the type of scales, void if
// there are none; Group: the number of inputs that share a scale, 0 if the whole row shares one.
template <class E, class Scale, int Group>
struct Weights {
  using Element = E;
  static constexpr bool kPacked = std::is_same_v<E, packed4>;
  static constexpr bool kHasScales = !std::is_void_v<Scale>;
  static constexpr int kGroup = Group;
  Rows<const E> rows;  // columns of packed weights are bytes
  const LinearParams& p;
  int output;

  XF_INLINE Weights(const LinearParams& p, int output)
      : rows{static_cast<const E*>(p.weight), p.weight_row, p.outputs, output,
             kPacked ? (p.inputs + kUnitInputs - 1) / kUnitInputs * kUnitBytes : p.inputs},
        p(p),
        output(output) {}
  // Returns the index of output n from here, or of the last output if that is past the end.
  XF_INLINE int there(int n) const {
    const int i = output + n;
    return i < p.outputs ? i : p.outputs - 1;
  }
  XF_INLINE const Scale* scale(int group, int n) const {
    return static_cast<const Scale*>(p.scales) + group * p.scale_group + there(n) * p.scale_output;
  }
  XF_INLINE int zero(int group, int n) const {
    if (!p.zeros) return kPacked ? 8 : 0;
    return p.zeros[group * p.zero_group + there(n) * p.zero_output];
  }
};

}  // namespace xeflash
