#include "zebin/zebin.hpp"

#include <cstring>

#include "base/fault.hpp"
#include "zebin/elf.hpp"

namespace xesim {
namespace {

constexpr uint32_t kSectionRela = 4, kSectionRel = 9;
constexpr size_t kRelocationBytes = 16;
constexpr uint64_t kMaxZeros = uint64_t{1} << 32;
constexpr size_t kMaxInfoBytes = size_t{8} << 20;  // the parsed tree takes some 30 times the text
constexpr std::string_view kDataKinds[] = {"const", "global", "const.string"};

// Sections may overlap in a damaged file: what is copied out of it stays bounded by its size all
// the same.
class Budget {
 public:
  explicit Budget(size_t file_bytes) : left_(4 * uint64_t{file_bytes} + 4096) {}
  void spend(uint64_t bytes) {
    if (bytes > left_) fail("the sections of the native binary overlap");
    left_ -= bytes;
  }

 private:
  uint64_t left_;
};

std::vector<uint8_t> copy(const ElfSection& section, Budget& budget) {
  budget.spend(section.data.size());
  return {section.data.begin(), section.data.end()};
}

// Bytes that a relocation of this type overwrites.
uint32_t patch_bytes(uint32_t type, std::string_view section) {
  enum : uint32_t { kAddress = 1, kLow = 2, kHigh = 3, kPerThreadOffset = 4, kWord = 7 };
  switch (type) {
    case kAddress:
      return 8;
    case kLow:
    case kHigh:
    case kPerThreadOffset:
      return 4;
    case kWord:
      return 2;
    default:
      fail("section %.*s has a relocation of type %u, which is not simulated",
           static_cast<int>(section.size()), section.data(), type);
  }
}

bool has_prefix(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// The place of a symbol. .bss.X lies behind .data.X: both count as section .data.X here.
void locate(const Elf& elf, const ElfSymbol& symbol, Relocation& relocation) {
  relocation.value = symbol.value;
  relocation.is_function = false;
  if (symbol.section == 0) return;
  const ElfSection& section = elf.sections()[symbol.section];
  relocation.section = section.name;
  relocation.is_function = section.name == ".text" || has_prefix(section.name, ".text.");
  uint64_t end = section.size;
  if (has_prefix(section.name, ".bss.") || has_prefix(section.name, ".data.")) {
    const bool is_zeros = section.name[1] == 'b';
    const std::string kind(section.name.substr(is_zeros ? 5 : 6));
    const ElfSection* initialised = elf.find(".data." + kind);
    const ElfSection* zeros = elf.find(".bss." + kind);
    const uint64_t first = initialised == nullptr ? 0 : initialised->size;
    // A variable of .bss.X may also be given as lying past the end of .data.X.
    end = is_zeros ? section.size : first + (zeros == nullptr ? 0 : zeros->size);
    relocation.section = ".data." + kind;
    if (symbol.value <= end && is_zeros) relocation.value += first;
  } else if (!relocation.is_function) {
    fail("symbol %.*s lies in section %.*s", static_cast<int>(symbol.name.size()),
         symbol.name.data(), static_cast<int>(section.name.size()), section.name.data());
  }
  if (symbol.value > end) {
    fail("symbol %.*s lies outside its section", static_cast<int>(symbol.name.size()),
         symbol.name.data());
  }
}

std::vector<Relocation> read_relocations(const Elf& elf, std::string_view section_name,
                                         uint64_t section_bytes, Budget& budget) {
  std::vector<Relocation> relocations;
  const ElfSection* section = elf.find(".rel" + std::string(section_name));
  if (section == nullptr) return relocations;
  if (section->type != kSectionRel || section->data.size() % kRelocationBytes != 0) {
    fail("the relocations of %.*s are damaged", static_cast<int>(section_name.size()),
         section_name.data());
  }
  if (section->link >= elf.sections().size()) fail("relocations without a symbol table");
  const ElfSection& symbols = elf.sections()[section->link];
  budget.spend(section->data.size());
  for (size_t at = 0; at < section->data.size(); at += kRelocationBytes) {
    uint64_t words[2];
    std::memcpy(words, section->data.data() + at, sizeof words);
    Relocation relocation{};
    relocation.offset = words[0];
    relocation.type = static_cast<uint32_t>(words[1]);
    if (relocation.type == 0) continue;
    const uint32_t bytes = patch_bytes(relocation.type, section_name);
    if (relocation.offset > section_bytes || bytes > section_bytes - relocation.offset) {
      fail("a relocation lies outside %.*s", static_cast<int>(section_name.size()),
           section_name.data());
    }
    const ElfSymbol symbol = elf.symbol(symbols, static_cast<uint32_t>(words[1] >> 32));
    budget.spend(symbol.name.size());
    relocation.symbol = symbol.name;
    locate(elf, symbol, relocation);
    relocations.push_back(std::move(relocation));
  }
  return relocations;
}

void read_data(const Elf& elf, Zebin& zebin, Budget& budget) {
  for (const std::string_view kind : kDataKinds) {
    const ElfSection* initialised = elf.find(".data." + std::string(kind));
    const ElfSection* zeros = elf.find(".bss." + std::string(kind));
    if (initialised == nullptr && zeros == nullptr) continue;
    DataSection& data = zebin.data[std::string(kind)];
    if (initialised != nullptr) data.bytes = copy(*initialised, budget);
    if (zeros != nullptr) {
      if (zeros->size > kMaxZeros) fail("the native binary asks for more than 4 GiB of zeros");
      data.zeros = zeros->size;
    }
  }
}

// Sections whose meaning is not known but that would change what kernels see.
void refuse_unknown_sections(const Elf& elf) {
  for (const ElfSection& section : elf.sections()) {
    const bool is_data = has_prefix(section.name, ".data.") || has_prefix(section.name, ".bss.");
    bool known = !is_data;
    for (const std::string_view kind : kDataKinds) {
      if (is_data && section.name.substr(section.name.find('.', 1) + 1) == kind) known = true;
    }
    if (has_prefix(section.name, ".rel.data.") && !section.data.empty()) known = false;
    if (section.type == kSectionRela) known = false;
    if (!known) {
      fail("section %.*s is not simulated", static_cast<int>(section.name.size()),
           section.name.data());
    }
  }
}

Zebin read_elf(const Elf& elf, size_t file_bytes, Family family) {
  Zebin zebin;
  zebin.family = family;
  Budget budget(file_bytes);
  refuse_unknown_sections(elf);
  const ElfSection* info = elf.find(".ze_info");
  if (info == nullptr) fail("the native binary has no .ze_info section");
  if (info->data.size() > kMaxInfoBytes) fail("the .ze_info section has more than 8 MiB");
  std::string_view text(reinterpret_cast<const char*>(info->data.data()), info->data.size());
  while (!text.empty() && text.back() == '\0') text.remove_suffix(1);
  for (KernelInfo& kernel : parse_ze_info(text, isa_of(family))) {
    const std::string name = ".text." + kernel.name;
    const ElfSection* code = elf.find(name);
    if (code == nullptr || code->data.empty()) {
      fail("kernel %s has no machine code", kernel.name.c_str());
    }
    if (kernel.skip_per_thread_load >= code->data.size()) {
      fail("kernel %s: offset_to_skip_per_thread_data_load lies outside the code",
           kernel.name.c_str());
    }
    KernelCode result;
    result.text = copy(*code, budget);
    result.relocations = read_relocations(elf, name, code->data.size(), budget);
    result.info = std::move(kernel);
    zebin.kernels.push_back(std::move(result));
  }
  if (const ElfSection* functions = elf.find(".text")) {
    zebin.functions = copy(*functions, budget);
    zebin.function_relocations = read_relocations(elf, ".text", functions->data.size(), budget);
  }
  read_data(elf, zebin, budget);
  return zebin;
}

// The member for this family; one for exactly the simulated device before its relatives.
std::span<const uint8_t> pick_member(std::span<const uint8_t> file, Family family) {
  std::span<const uint8_t> picked;
  std::string others;
  for (const auto& member : native_members(file)) {
    const CompatNote note = read_compat_note(Elf(member));
    if (!fits_family(note, family)) {
      if (others.size() < 200) others += (others.empty() ? "" : ", ") + describe_note(note);
    } else if (is_exact_device(note, family)) {
      return member;
    } else if (picked.empty()) {
      picked = member;
    }
  }
  if (picked.empty()) {
    fail("the archive holds no native binary for %s, only for: %s", isa_of(family).name,
         others.empty() ? "nothing" : others.c_str());
  }
  return picked;
}

}  // namespace

Zebin read_zebin(std::span<const uint8_t> file, Family family) {
  if (is_archive(file)) file = pick_member(file, family);
  const Elf elf(file);
  const CompatNote note = read_compat_note(elf);
  if (!fits_family(note, family)) {
    fail("the native binary was built for %s, the device is %s", describe_note(note).c_str(),
         isa_of(family).name);
  }
  return read_elf(elf, file.size(), family);
}

bool is_native(std::span<const uint8_t> file) { return is_archive(file) || Elf::matches(file); }

}  // namespace xesim
