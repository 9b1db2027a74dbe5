// `ar` archives, as ocloc writes them for several devices.
#include <cstring>

#include "base/fault.hpp"
#include "zebin/elf.hpp"

namespace xesim {
namespace {

constexpr char kMagic[] = "!<arch>\n";
constexpr size_t kMagicBytes = 8, kMemberHeaderBytes = 60, kSizeOffset = 48, kSizeDigits = 10;

// Decimal digits, then blanks.
uint64_t parse_size(std::span<const uint8_t> field) {
  uint64_t value = 0;
  size_t i = 0;
  for (; i < field.size() && field[i] >= '0' && field[i] <= '9'; ++i) {
    value = value * 10 + (field[i] - '0');
  }
  if (i == 0) fail("the archive of native binaries has a member without a size");
  for (; i < field.size(); ++i) {
    if (field[i] != ' ') fail("the archive of native binaries has a member with a damaged size");
  }
  return value;
}

}  // namespace

bool is_archive(std::span<const uint8_t> file) {
  return file.size() >= kMagicBytes && std::memcmp(file.data(), kMagic, kMagicBytes) == 0;
}

std::vector<std::span<const uint8_t>> native_members(std::span<const uint8_t> file) {
  std::vector<std::span<const uint8_t>> members;
  for (auto rest = file.subspan(kMagicBytes); !rest.empty();) {
    if (rest.size() < kMemberHeaderBytes)
      fail("the archive of native binaries is cut off in a header");
    const uint64_t size = parse_size(rest.subspan(kSizeOffset, kSizeDigits));
    if (rest[58] != '`' || rest[59] != '\n') fail("the archive has a damaged member header");
    rest = rest.subspan(kMemberHeaderBytes);
    if (size > rest.size()) {
      fail("the archive of native binaries is cut off: a member has %llu bytes, %zu are left",
           static_cast<unsigned long long>(size), rest.size());
    }
    if (Elf::matches(rest.first(size))) members.push_back(rest.first(size));
    rest = rest.subspan(std::min<uint64_t>(size + size % 2, rest.size()));
  }
  return members;
}

}  // namespace xesim
