#include "driver/build_cache.hpp"

#include <pwd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/fault.hpp"
#include "base/hash.hpp"
#include "driver/private_folder.hpp"

namespace xesim::driver {
namespace {

// Two hashes from different starts make the 128-bit names of entries.
constexpr uint64_t kOtherStart = 0x9ae16a3b2f90404f;

struct Header {
  char magic[8] = {'x', 'e', 's', 'i', 'm', 'B', '0', '1'};
  uint64_t key[2] = {};
  uint64_t bytes = 0;
  uint64_t checksum = 0;
};

Header header_of(const BuildInput& input) {
  std::vector<uint8_t> text;
  for (const std::string* part : {&input.device, &input.options, &input.compiler}) {
    text.insert(text.end(), part->begin(), part->end());
    text.push_back(0);
  }
  const auto* first = input.spirv.data();
  text.insert(text.end(), first, first + input.spirv.size());
  Header header;
  header.key[0] = hash_of(text);
  header.key[1] = hash_of(text, kOtherStart);
  return header;
}

std::string name_of(const Header& header) {
  char name[48];
  std::snprintf(name, sizeof name, "%016llx%016llx.bin",
                static_cast<unsigned long long>(header.key[0]),
                static_cast<unsigned long long>(header.key[1]));
  return name;
}

// Nothing for a folder that is not used; why, once.
std::unique_ptr<PrivateFolder> open_builds(bool make) try {
  return std::make_unique<PrivateFolder>(cache_folder() + "/xesim", make);
} catch (const Fault& fault) {
  static std::once_flag said;
  if (make) {
    std::call_once(said, [&] {
      std::fprintf(stderr, "xesim: %s; kernels are compiled again in every process\n",
                   fault.what());
    });
  }
  return nullptr;
}

// Nothing as well for an entry that may be somebody else's: it is built again and replaced.
std::optional<std::vector<uint8_t>> read_entry(const PrivateFolder& folder,
                                               const std::string& name) try {
  return folder.read(name);
} catch (const Fault&) {
  return std::nullopt;
}

}  // namespace

std::string cache_folder() {
  auto given = [](const char* name) -> const char* {
    const char* value = std::getenv(name);
    return value != nullptr && *value != 0 ? value : nullptr;
  };
  if (const char* folder = given("XEFLASH_CACHE_DIR")) return folder;
  if (const char* folder = given("XDG_CACHE_HOME")) return std::string(folder) + "/xeflash";
  if (const char* home = given("HOME")) return std::string(home) + "/.cache/xeflash";
  if (const passwd* user = getpwuid(getuid())) return std::string(user->pw_dir) + "/.cache/xeflash";
  const char* scratch = given("TMPDIR");
  return std::string(scratch ? scratch : "/tmp") + "/xeflash-" + std::to_string(geteuid());
}

std::optional<std::vector<uint8_t>> load_build(const BuildInput& input) {
  const Header wanted = header_of(input);
  const auto folder = open_builds(false);
  const auto bytes = folder ? read_entry(*folder, name_of(wanted)) : std::nullopt;
  Header found;
  if (!bytes || bytes->size() < sizeof found) return std::nullopt;
  std::memcpy(&found, bytes->data(), sizeof found);
  if (std::memcmp(found.magic, wanted.magic, sizeof found.magic) != 0 ||
      found.key[0] != wanted.key[0] || found.key[1] != wanted.key[1]) {
    return std::nullopt;
  }
  const std::vector<uint8_t> binary(bytes->begin() + sizeof found, bytes->end());
  if (binary.size() != found.bytes || hash_of(binary) != found.checksum) return std::nullopt;
  return binary;
}

void store_build(const BuildInput& input, std::span<const uint8_t> binary) {
  Header header = header_of(input);
  header.bytes = binary.size();
  header.checksum = hash_of(binary);
  std::vector<uint8_t> bytes(sizeof header + binary.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + sizeof header, binary.data(), binary.size());
  if (const auto folder = open_builds(true)) folder->write(name_of(header), bytes);
}

}  // namespace xesim::driver
