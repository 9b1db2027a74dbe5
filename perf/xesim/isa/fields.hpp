// Where the fields of a 128-bit instruction lie. Bit 0 is the lowest bit of the first dword.
#pragma once

#include <array>
#include <cstdint>

#include "isa/inst.hpp"

namespace xesim {

using Bits128 = std::array<uint64_t, 2>;

// Bits high..low, both included, at most 32 of them.
struct Field {
  uint8_t high, low;
  constexpr int width() const { return high - low + 1; }
};

constexpr uint32_t get(const Bits128& bits, Field field) {
  const uint64_t mask = (uint64_t{1} << field.width()) - 1;
  const int word = field.low / 64, shift = field.low % 64;
  uint64_t value = bits[word] >> shift;
  if (shift + field.width() > 64) value |= bits[1] << (64 - shift);
  return static_cast<uint32_t>(value & mask);
}
constexpr bool get(const Bits128& bits, int bit) { return bits[bit / 64] >> (bit % 64) & 1; }

constexpr void set(Bits128& bits, Field field, uint32_t value) {
  const uint64_t mask = (uint64_t{1} << field.width()) - 1;
  const int word = field.low / 64, shift = field.low % 64;
  bits[word] = (bits[word] & ~(mask << shift)) | (value & mask) << shift;
  if (shift + field.width() > 64) {
    bits[1] = (bits[1] & ~(mask >> (64 - shift))) | (value & mask) >> (64 - shift);
  }
}

constexpr int32_t sign_extend(uint32_t value, int width) {
  return static_cast<int32_t>(value << (32 - width)) >> (32 - width);
}

// What differs between the families. A subregister is kept in bytes; pvc and bmg store it as 5 bits
// of two bytes plus a low bit elsewhere (`low_bit`), which ternary instructions do not have.
struct Layout {
  Field swsb, exec_size, channel_offset;
  int channel_unit;
  Field flag;  // register * 2 + subregister
  Field predicate;
  Field vertical;             // relative to a binary source's first bit
  uint8_t vertical_indirect;  // code of a region with one address per `width` elements
  int subregister_unit;
  int low_bit_dst, low_bit_src;  // low_bit_src is relative; 0 = no such bit
};
inline constexpr Layout kLayoutDg2 = {{15, 8},  {18, 16}, {21, 19}, 4, {23, 22}, {27, 24},
                                      {23, 20}, 15,       1,        0, 0};
inline constexpr Layout kLayoutXe2 = {{17, 8},  {20, 18}, {25, 24}, 8,  {23, 21}, {27, 26},
                                      {22, 20}, 7,        2,        33, 23};
constexpr const Layout& layout_of(Family family) {
  return family == Family::kDg2 ? kLayoutDg2 : kLayoutXe2;
}

// Fields at the same place in every family.
inline constexpr Field kOpcode = {6, 0};
inline constexpr int kPredicateInverse = 28, kCompacted = 29, kNoMask = 31, kAtomic = 32;
inline constexpr int kBit33 = 33;  // AccWrEn (dg2), BranchCtrl
inline constexpr int kSaturate = 34, kEndOfThread = 34;
inline constexpr Field kFunction = {95, 92};  // condition, math or sync function, sfid
inline constexpr Field kImmediate = {127, 96}, kImmediateHigh = {95, 64};
inline constexpr Field kDstStride = {49, 48}, kDstSub = {55, 51}, kDstReg = {63, 56};
inline constexpr int kDstIndirect = 35, kDstGrf = 50;
inline constexpr Field kDstOffset = {59, 50}, kDstAddress = {63, 60};
inline constexpr Field kDstType = {39, 36};
inline constexpr Field kSourceType[2] = {{43, 40}, {91, 88}};
inline constexpr Field kSourceModifier[2] = {{45, 44}, {121, 120}};
inline constexpr int kSourceImmediate[2] = {46, 47};
inline constexpr int kSourceStart[2] = {64, 96};

// A source operand, relative to its first bit.
inline constexpr Field kSrcHorizontal = {1, 0}, kSrcSub = {7, 3}, kSrcReg = {15, 8},
                       kSrcWidth = {19, 17};
inline constexpr int kSrcGrf = 2, kSrcIndirect = 16;
inline constexpr Field kSrcOffset = {11, 2}, kSrcAddress = {15, 12};
constexpr Field at(Field field, int start) {
  return {static_cast<uint8_t>(field.high + start), static_cast<uint8_t>(field.low + start)};
}

// Ternary instructions and dpas: three-bit types, one bit says integer or float.
inline constexpr int kTernaryFloat = 39, kTernaryDstStride = 48;
inline constexpr Field kTernaryDstType = {38, 36};
inline constexpr Field kTernaryType[3] = {{42, 40}, {90, 88}, {82, 80}};
inline constexpr Field kTernaryModifier[3] = {{45, 44}, {87, 86}, {85, 84}};
inline constexpr int kTernaryStart[3] = {64, 96, 112};
inline constexpr int kTernaryVertical[2][2] = {{43, 35}, {91, 83}};  // high bit, low bit
inline constexpr int kTernaryImmediate[3] = {46, -1, 47};
inline constexpr Field kTernaryImmediateBits[3] = {{79, 64}, {0, 0}, {127, 112}};
inline constexpr Field kBfnHigh = {95, 92}, kBfnLow = {87, 84}, kBfnCondition = {45, 44};
inline constexpr Field kDpasRepeat = {45, 43}, kDpasDepth = {49, 48};
inline constexpr Field kDpasPrecision[3] = {{0, 0}, {87, 86}, {85, 84}};

// Sends.
inline constexpr Field kSendDst = {63, 56}, kSendSrc0 = {79, 72}, kSendSrc1 = {111, 104};
inline constexpr int kSendDstGrf = 50, kSendSrc0Grf = 66, kSendSrc1Grf = 98;
inline constexpr Field kSendSrc1Length = {103, 99}, kSendExdescSub = {42, 40};
inline constexpr int kSendDescReg = 48, kSendExdescReg = 49, kSendExBso = 39;
struct FieldPart {
  Field to, from;  // bits `to` of a descriptor are bits `from` of the instruction
};
inline constexpr FieldPart kDesc[] = {{{31, 30}, {123, 122}},
                                      {{29, 25}, {71, 67}},
                                      {{24, 20}, {55, 51}},
                                      {{19, 11}, {121, 113}},
                                      {{10, 0}, {91, 81}}};
inline constexpr FieldPart kExdesc[] = {
    {{31, 28}, {127, 124}}, {{27, 26}, {97, 96}}, {{25, 24}, {65, 64}}, {{23, 11}, {47, 35}}};

}  // namespace xesim
