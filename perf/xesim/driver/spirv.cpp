#include "driver/spirv.hpp"

#include <cstring>
#include <set>
#include <utility>

#include "base/fault.hpp"

namespace xesim::driver {
namespace {

// SPIR-V specification: section 2.3 (layout of a module), 3.52 (instructions), 3.20 (decorations).
constexpr uint32_t kMagic = 0x07230203, kHeaderWords = 5;
constexpr uint32_t kOpSpecConstantTrue = 48, kOpSpecConstantFalse = 49, kOpSpecConstant = 50;
constexpr uint32_t kOpDecorate = 71, kDecorationSpecId = 1;
constexpr uint32_t kOpTypeInt = 21, kOpTypeFloat = 22;
// 3.6 (execution modes), 3.31 (capabilities); the extension SPV_KHR_float_controls defines them.
constexpr uint32_t kOpExtension = 10, kOpEntryPoint = 15, kOpExecutionMode = 16, kOpCapability = 17;
constexpr uint32_t kModeDenormPreserve = 4459, kModeDenormFlushToZero = 4460;
constexpr uint32_t kCapabilityDenormFlushToZero = 4465;

std::vector<uint32_t> words_of(std::span<const uint8_t> spirv) {
  std::vector<uint32_t> words(spirv.size() / 4);
  if (!words.empty()) std::memcpy(words.data(), spirv.data(), words.size() * 4);
  if (words.size() < kHeaderWords || words[0] != kMagic)
    fail("the module is not SPIR-V of this machine's byte order");
  return words;
}

std::vector<uint8_t> bytes_of(const std::vector<uint32_t>& words) {
  std::vector<uint8_t> bytes(words.size() * 4);
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

// Calls visit(opcode, words of the instruction) for each instruction.
template <class Visit>
void for_each_instruction(std::vector<uint32_t>& words, Visit visit) {
  for (size_t at = kHeaderWords; at < words.size();) {
    const uint32_t length = words[at] >> 16;
    if (length == 0 || length > words.size() - at)
      fail("the SPIR-V module breaks off at word %zu", at);
    visit(words[at] & 0xffff, std::span(words).subspan(at, length));
    at += length;
  }
}

void append(std::vector<uint32_t>& words, uint32_t op, const std::vector<uint32_t>& operands) {
  words.push_back(static_cast<uint32_t>(operands.size() + 1) << 16 | op);
  words.insert(words.end(), operands.begin(), operands.end());
}

}  // namespace

std::vector<uint8_t> specialise(std::span<const uint8_t> spirv,
                                const std::map<uint32_t, const void*>& values) {
  std::vector<uint32_t> words = words_of(spirv);
  std::map<uint32_t, const void*> value_of;  // result id -> value
  std::map<uint32_t, uint32_t> bits_of;      // numeric type id -> width
  for_each_instruction(words, [&](uint32_t op, std::span<uint32_t> inst) {
    if (op == kOpDecorate && inst.size() == 4 && inst[2] == kDecorationSpecId) {
      const auto it = values.find(inst[3]);
      if (it != values.end()) value_of[inst[1]] = it->second;
    }
    if ((op == kOpTypeInt || op == kOpTypeFloat) && inst.size() >= 3) bits_of[inst[1]] = inst[2];
  });
  for_each_instruction(words, [&](uint32_t op, std::span<uint32_t> inst) {
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
  return bytes_of(words);
}

std::vector<uint8_t> flush_denormals(std::span<const uint8_t> spirv) {
  std::vector<uint32_t> words = words_of(spirv);
  std::set<uint32_t> kernels;
  std::set<std::pair<uint32_t, uint32_t>> stated;  // kernel, width
  for_each_instruction(words, [&](uint32_t op, std::span<uint32_t> inst) {
    if (op == kOpEntryPoint && inst.size() > 2) kernels.insert(inst[2]);
    if (op == kOpExecutionMode && inst.size() == 4 &&
        (inst[2] == kModeDenormPreserve || inst[2] == kModeDenormFlushToZero))
      stated.insert({inst[1], inst[3]});
  });
  // The order is fixed: capabilities, extensions, ..., entry points, execution modes.
  std::vector<uint32_t> result(words.begin(), words.begin() + kHeaderWords);
  append(result, kOpCapability, {kCapabilityDenormFlushToZero});
  bool extension_written = false;
  size_t entry_points = kernels.size();
  for_each_instruction(words, [&](uint32_t op, std::span<uint32_t> inst) {
    if (op != kOpCapability && !extension_written) {
      std::vector<uint32_t> name(6);
      std::memcpy(name.data(), "SPV_KHR_float_controls", 22);
      append(result, kOpExtension, name);
      extension_written = true;
    }
    result.insert(result.end(), inst.begin(), inst.end());
    if (op != kOpEntryPoint || --entry_points != 0) return;
    for (const uint32_t kernel : kernels) {
      for (const uint32_t width : {16u, 32u, 64u}) {
        if (!stated.contains({kernel, width}))
          append(result, kOpExecutionMode, {kernel, kModeDenormFlushToZero, width});
      }
    }
  });
  return bytes_of(result);
}

}  // namespace xesim::driver
