#include "driver/build_cache.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace xesim::driver {
namespace {

namespace fs = std::filesystem;

// FNV-1a with 64 bits. Two of them from different starts make the 128-bit names of entries.
uint64_t hash_bytes(std::span<const uint8_t> bytes, uint64_t start) {
  uint64_t hash = start;
  for (const uint8_t b : bytes) hash = (hash ^ b) * 0x100000001b3;
  return hash;
}
constexpr uint64_t kStart = 0xcbf29ce484222325, kOtherStart = 0x9ae16a3b2f90404f;

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
  header.key[0] = hash_bytes(text, kStart);
  header.key[1] = hash_bytes(text, kOtherStart);
  return header;
}

fs::path entry_path(const Header& header) {
  char name[48];
  std::snprintf(name, sizeof name, "%016llx%016llx.bin",
                static_cast<unsigned long long>(header.key[0]),
                static_cast<unsigned long long>(header.key[1]));
  return fs::path(cache_folder()) / "xesim" / name;
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
  return "/tmp/xeflash-" + std::to_string(getuid());
}

std::optional<std::vector<uint8_t>> load_build(const BuildInput& input) {
  const Header wanted = header_of(input);
  std::ifstream file(entry_path(wanted), std::ios::binary);
  Header found;
  if (!file.read(reinterpret_cast<char*>(&found), sizeof found)) return std::nullopt;
  if (std::memcmp(found.magic, wanted.magic, sizeof found.magic) != 0 ||
      found.key[0] != wanted.key[0] || found.key[1] != wanted.key[1]) {
    return std::nullopt;
  }
  const std::vector<char> rest{std::istreambuf_iterator<char>(file), {}};
  std::vector<uint8_t> binary(rest.begin(), rest.end());
  if (binary.size() != found.bytes || hash_bytes(binary, kStart) != found.checksum)
    return std::nullopt;
  return binary;
}

void store_build(const BuildInput& input, std::span<const uint8_t> binary) {
  static std::atomic<int> counter{0};
  Header header = header_of(input);
  header.bytes = binary.size();
  header.checksum = hash_bytes(binary, kStart);
  const fs::path path = entry_path(header);
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  // Written aside and renamed: another process sees the whole entry, or none.
  fs::path aside = path;
  aside += "." + std::to_string(getpid()) + "-" + std::to_string(counter++) + ".tmp";
  {
    std::ofstream file(aside, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&header), sizeof header);
    file.write(reinterpret_cast<const char*>(binary.data()),
               static_cast<std::streamsize>(binary.size()));
    file.close();
    if (!file) {
      fs::remove(aside, error);
      return;
    }
  }
  fs::rename(aside, path, error);
  if (error) fs::remove(aside, error);
}

}  // namespace xesim::driver
