// A folder whose files are run, so that they have to be the reader's own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace xesim::driver {

// The rules, and their reasons, are those of python/xeflash/runtime/cache_folder.py: what is opened
// has to belong to the reader or to root, only its owner may write it, and links in it are not
// followed.
class PrivateFolder {
 public:
  // Throws Fault for one that somebody else may have written, or that cannot be had.
  PrivateFolder(const std::string& path, bool make);
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  bool has(const std::string& name) const;  // throws Fault for a file that may be somebody else's
  std::optional<std::vector<uint8_t>> read(const std::string& name) const;  // likewise
  // Others see the whole file or none. Failures are ignored.
  void write(const std::string& name, std::span<const uint8_t> bytes) const;

 private:
  int open_file(const std::string& name) const;  // -1 if there is none

  std::string path_;
  int descriptor_;
};

}  // namespace xesim::driver
