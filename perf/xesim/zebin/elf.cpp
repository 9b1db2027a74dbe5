#include "zebin/elf.hpp"

#include <cstring>

#include "base/fault.hpp"

namespace xesim {
namespace {

constexpr uint16_t kMachineIntelGt = 205;  // EM_INTELGT
constexpr size_t kHeaderBytes = 64, kSectionHeaderBytes = 64, kSymbolBytes = 24;
constexpr size_t kMaxNameBytes = 4096;

// The caller has checked that sizeof(T) bytes are there.
template <class T>
T get(std::span<const uint8_t> bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

bool inside(uint64_t offset, uint64_t bytes, uint64_t size) {
  return offset <= size && bytes <= size - offset;
}

}  // namespace

bool Elf::matches(std::span<const uint8_t> file) {
  static constexpr uint8_t kIdent[] = {0x7f, 'E', 'L', 'F', 2 /* 64 bits */, 1 /* little endian */};
  return file.size() >= kHeaderBytes && std::memcmp(file.data(), kIdent, sizeof kIdent) == 0 &&
         get<uint16_t>(file, 18) == kMachineIntelGt;
}

Elf::Elf(std::span<const uint8_t> file) : file_(file) {
  if (!matches(file)) fail("not a native binary for an Intel GPU (no ELF64 header of machine 205)");
  const uint64_t table = get<uint64_t>(file, 0x28);
  const uint16_t entry_bytes = get<uint16_t>(file, 0x3a), count = get<uint16_t>(file, 0x3c),
                 name_section = get<uint16_t>(file, 0x3e);
  if (count == 0) fail("the native binary has no sections");
  if (entry_bytes != kSectionHeaderBytes) {
    fail("the native binary's section headers have %u bytes, not %zu", unsigned{entry_bytes},
         kSectionHeaderBytes);
  }
  if (!inside(table, uint64_t{count} * kSectionHeaderBytes, file.size())) {
    fail("the native binary is cut off: its section headers end outside the %zu bytes",
         file.size());
  }
  if (name_section >= count) fail("the native binary has no section names");
  std::vector<uint32_t> name_offsets;
  for (int i = 0; i < count; ++i) {
    const uint64_t at = table + static_cast<uint64_t>(i) * kSectionHeaderBytes;
    ElfSection section;
    name_offsets.push_back(get<uint32_t>(file, at));
    section.type = get<uint32_t>(file, at + 4);
    section.size = get<uint64_t>(file, at + 32);
    section.link = get<uint32_t>(file, at + 40);
    const uint64_t offset = get<uint64_t>(file, at + 24);
    if (section.type == 0) {
      section.size = 0;
    } else if (section.type != kSectionNoBits) {
      if (!inside(offset, section.size, file.size())) {
        fail(
            "the native binary is cut off: section %d (%llu bytes at %llu) ends outside the %zu "
            "bytes",
            i, static_cast<unsigned long long>(section.size),
            static_cast<unsigned long long>(offset), file.size());
      }
      section.data = file.subspan(offset, section.size);
    }
    sections_.push_back(section);
  }
  for (int i = 0; i < count; ++i) {
    ElfSection& section = sections_[i];
    if (section.type == 0) continue;
    section.name = string_at(sections_[name_section], name_offsets[i], "section");
    if (!by_name_.emplace(section.name, i).second) {
      fail("the native binary has two sections %.*s", static_cast<int>(section.name.size()),
           section.name.data());
    }
  }
}

std::string_view Elf::string_at(const ElfSection& table, uint64_t offset, const char* what) const {
  if (offset >= table.data.size()) fail("a %s name lies outside the string table", what);
  const char* first = reinterpret_cast<const char*>(table.data.data()) + offset;
  const size_t limit = std::min<uint64_t>(table.data.size() - offset, kMaxNameBytes);
  const void* end = std::memchr(first, 0, limit);
  if (end == nullptr) fail("a %s name has no end within %zu bytes", what, limit);
  return {first, static_cast<size_t>(static_cast<const char*>(end) - first)};
}

const ElfSection* Elf::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &sections_[found->second];
}

ElfSymbol Elf::symbol(const ElfSection& table, uint32_t index) const {
  const uint64_t at = uint64_t{index} * kSymbolBytes;
  if (!inside(at, kSymbolBytes, table.data.size())) {
    fail("a relocation uses symbol %u, the table has %zu", index, table.data.size() / kSymbolBytes);
  }
  if (table.link >= sections_.size()) fail("the symbol table has no string table");
  ElfSymbol symbol;
  symbol.name = string_at(sections_[table.link], get<uint32_t>(table.data, at), "symbol");
  symbol.section = get<uint16_t>(table.data, at + 6);
  symbol.value = get<uint64_t>(table.data, at + 8);
  if (symbol.section >= sections_.size()) {
    fail("symbol %.*s lies in section %u of %zu", static_cast<int>(symbol.name.size()),
         symbol.name.data(), unsigned{symbol.section}, sections_.size());
  }
  return symbol;
}

// Note entries: sizes of owner and content, type, owner, content; both padded to 4 bytes.
CompatNote read_compat_note(const Elf& elf) {
  enum : uint32_t { kProduct = 1, kGfxCore = 2, kIpVersion = 6 };
  CompatNote note;
  const ElfSection* section = elf.find(".note.intelgt.compat");
  if (section == nullptr) return note;
  auto padded = [](uint64_t n) { return (n + 3) & ~uint64_t{3}; };
  for (std::span<const uint8_t> rest = section->data; !rest.empty();) {
    if (rest.size() < 12) fail("the compatibility note is cut off");
    const uint64_t owner = padded(get<uint32_t>(rest, 0)), bytes = get<uint32_t>(rest, 4);
    const uint32_t type = get<uint32_t>(rest, 8);
    rest = rest.subspan(12);
    if (!inside(owner, bytes, rest.size())) fail("the compatibility note is cut off");
    const bool ours = owner == 8 && std::memcmp(rest.data(), "IntelGT", 8) == 0;
    if (ours && bytes == 4) {
      const uint32_t value = get<uint32_t>(rest, owner);
      if (type == kProduct) note.product = value;
      if (type == kGfxCore) note.gfx_core = value;
      if (type == kIpVersion) note.ip_version = value;
    }
    rest = rest.subspan(std::min<uint64_t>(owner + padded(bytes), rest.size()));
  }
  return note;
}

namespace {

// By Family, as ocloc writes them for `-device dg2`, `pvc`, `bmg` and `ptl-h`.
constexpr struct FamilyCodes {
  uint32_t product, gfx_core, architecture, release;
} kCodes[] = {
    {1270, 0xc07, 12, 55}, {1271, 0xc08, 12, 60}, {1274, 0xc09, 20, 1}, {1300, 0x1e00, 30, 0}};
const FamilyCodes& codes_of(Family family) { return kCodes[static_cast<int>(family)]; }

}  // namespace

bool fits_family(const CompatNote& note, Family family) {
  const FamilyCodes& codes = codes_of(family);
  if (note.gfx_core != 0) return note.gfx_core == codes.gfx_core;
  return note.product == 0 || note.product == codes.product;
}

bool is_exact_device(const CompatNote& note, Family family) {
  const FamilyCodes& codes = codes_of(family);
  return note.ip_version >> 22 == codes.architecture &&
         (note.ip_version >> 14 & 0xff) == codes.release;
}

std::string describe_note(const CompatNote& note) {
  for (const Family family : kFamilies) {
    if (fits_family(note, family)) return isa_of(family).name;
  }
  char text[80];
  std::snprintf(text, sizeof text, "core family 0x%x, product %u", note.gfx_core, note.product);
  return text;
}

}  // namespace xesim
