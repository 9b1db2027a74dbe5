// The container of a native binary: ELF64, little endian, relocatable. Views into the file, all
// checked.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zebin/zebin.hpp"

namespace xesim {

constexpr uint32_t kSectionNoBits = 8;  // SHT_NOBITS: takes no room in the file

struct ElfSection {
  std::string_view name;
  uint32_t type = 0;
  uint32_t link = 0;
  uint64_t size = 0;
  std::span<const uint8_t> data;  // empty if kSectionNoBits
};

struct ElfSymbol {
  std::string_view name;
  uint16_t section = 0;  // 0 = undefined
  uint64_t value = 0;
};

class Elf {
 public:
  // Throws Fault unless every header, section and name lies inside the file. `file` must outlive
  // this.
  explicit Elf(std::span<const uint8_t> file);

  static bool matches(std::span<const uint8_t> file);

  const std::vector<ElfSection>& sections() const { return sections_; }
  const ElfSection* find(std::string_view name) const;
  ElfSymbol symbol(const ElfSection& table, uint32_t index) const;

 private:
  std::string_view string_at(const ElfSection& table, uint64_t offset, const char* what) const;
  std::span<const uint8_t> file_;
  std::vector<ElfSection> sections_;
  std::map<std::string_view, size_t> by_name_;
};

// What .note.intelgt.compat says; 0 = nothing.
struct CompatNote {
  uint32_t product = 0;     // product family
  uint32_t gfx_core = 0;    // core family
  uint32_t ip_version = 0;  // architecture << 22 | release << 14 | revision
};
CompatNote read_compat_note(const Elf& elf);
// False if the note names another family. A binary without a note fits any.
bool fits_family(const CompatNote& note, Family family);
// Architecture and release are those of the simulated device.
bool is_exact_device(const CompatNote& note, Family family);
std::string describe_note(const CompatNote& note);

// archive.cpp: the members of an `ar` archive that are native binaries; throws Fault on a damaged
// one.
bool is_archive(std::span<const uint8_t> file);
std::vector<std::span<const uint8_t>> native_members(std::span<const uint8_t> file);

// ze_info.cpp: the kernels of .ze_info, without the compiler's pseudo kernel.
std::vector<KernelInfo> parse_ze_info(std::string_view text, const Isa& isa);

}  // namespace xesim
