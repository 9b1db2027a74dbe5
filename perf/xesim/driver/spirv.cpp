#include "driver/spirv.hpp"

#include <cstring>

#include "machine/fault.hpp"

namespace xesim::driver {
namespace {

// SPIR-V specification: section 2.3 (layout of a module), 3.52 (instructions), 3.20 (decorations).
constexpr uint32_t kMagic = 0x07230203, kHeaderWords = 5;
constexpr uint32_t kOpSpecConstantTrue = 48, kOpSpecConstantFalse = 49, kOpSpecConstant = 50;
constexpr uint32_t kOpDecorate = 71, kDecorationSpecId = 1;
constexpr uint32_t kOpTypeInt = 21, kOpTypeFloat = 22;

}  // namespace

std::vector<uint8_t> specialise(std::span<const uint8_t> spirv,
                                const std::map<uint32_t, const void*>& values) {
  std::vector<uint32_t> words(spirv.size() / 4);
  if (!words.empty()) std::memcpy(words.data(), spirv.data(), words.size() * 4);
  if (words.size() < kHeaderWords || words[0] != kMagic)
    fail("the module is not SPIR-V of this machine's byte order");
  auto for_each = [&](auto visit) {
    for (size_t at = kHeaderWords; at < words.size();) {
      const uint32_t length = words[at] >> 16;
      if (length == 0 || length > words.size() - at)
        fail("the SPIR-V module breaks off at word %zu", at);
      visit(words[at] & 0xffff, std::span(words).subspan(at, length));
      at += length;
    }
  };
  std::map<uint32_t, const void*> value_of;  // result id -> value
  std::map<uint32_t, uint32_t> bits_of;      // numeric type id -> width
  for_each([&](uint32_t op, std::span<uint32_t> inst) {
    if (op == kOpDecorate && inst.size() == 4 && inst[2] == kDecorationSpecId) {
      const auto it = values.find(inst[3]);
      if (it != values.end()) value_of[inst[1]] = it->second;
    }
    if ((op == kOpTypeInt || op == kOpTypeFloat) && inst.size() >= 3) bits_of[inst[1]] = inst[2];
  });
  for_each([&](uint32_t op, std::span<uint32_t> inst) {
    if (op < kOpSpecConstantTrue || op > kOpSpecConstant || inst.size() < 3) return;
    const auto it = value_of.find(inst[2]);
    if (it == value_of.end()) return;
    if (op == kOpSpecConstant) {
      const uint32_t bytes = bits_of[inst[1]] / 8;
      if (bytes == 0 || bytes > (inst.size() - 3) * 4)
        fail("specialization constant of an unknown type");
      std::memset(&inst[3], 0, (inst.size() - 3) * 4);
      std::memcpy(&inst[3], it->second, bytes);
    } else {
      const bool value = *static_cast<const uint8_t*>(it->second) != 0;
      inst[0] = (inst[0] & 0xffff0000) | (value ? kOpSpecConstantTrue : kOpSpecConstantFalse);
    }
  });
  // They stay specialization constants, with another default: expressions of them are evaluated by
  // the compiler.
  std::vector<uint8_t> result(words.size() * 4);
  std::memcpy(result.data(), words.data(), result.size());
  return result;
}

}  // namespace xesim::driver
