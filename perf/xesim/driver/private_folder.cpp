#include "driver/private_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/fault.hpp"

namespace xesim::driver {
namespace {

constexpr int kAnyFolder = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr int kMostLinks = 40;  // as Linux has it
constexpr off_t kMostBytes = off_t{1} << 28;

class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

bool is_trusted(uid_t owner) { return owner == 0 || owner == geteuid(); }

void judge(const std::string& path, const struct stat& found) {
  if (!is_trusted(found.st_uid)) {
    fail("%s must belong to uid %u or root, it belongs to uid %u", path.c_str(), geteuid(),
         found.st_uid);
  }
  if (found.st_mode & (S_IWGRP | S_IWOTH)) {
    fail("%s must be writable by its owner only (chmod go-w), its mode is %04o", path.c_str(),
         found.st_mode & 07777);
  }
}

struct stat status_of(const Descriptor& descriptor) {
  struct stat found{};
  fstat(descriptor.get(), &found);
  return found;
}

Descriptor open_below(const Descriptor& at, const std::string& name, int how) {
  return Descriptor(openat(at.get(), name.c_str(), how));
}

// Puts the names of a path before those that are left; the last one is the next.
void push_names(std::vector<std::string>& names, const std::string& path) {
  std::vector<std::string> found;
  for (const auto& part : std::filesystem::path(path)) {
    if (part != "/" && !part.empty()) found.push_back(part.string());
  }
  names.insert(names.end(), found.rbegin(), found.rend());
}

// Reaches a folder from the root one name at a time.
Descriptor walk(const std::string& path, bool make) {
  std::vector<std::string> names;
  push_names(names, std::filesystem::absolute(path).string());
  Descriptor at(open("/", kAnyFolder));
  for (int links = 0; !names.empty();) {
    const std::string name = names.back();
    names.pop_back();
    const struct stat within = status_of(at);
    const bool for_all = within.st_mode & S_IWOTH;
    if (for_all && !(within.st_mode & S_ISVTX)) {
      fail(
          "%s must not be in a folder that everybody may write and that is not sticky (that of %s)",
          path.c_str(), name.c_str());
    }
    Descriptor below = open_below(at, name, kAnyFolder);
    if (below.get() < 0 && errno == ENOENT && make) {
      mkdirat(at.get(), name.c_str(), 0700);
      below = open_below(at, name, kAnyFolder);
    }
    if (below.get() >= 0) {
      at = std::move(below);
      continue;
    }
    const int error = errno;
    const Descriptor link = open_below(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    char target[PATH_MAX];
    const ssize_t size = link.get() < 0 ? -1 : readlinkat(link.get(), "", target, sizeof target);
    if (size < 0 || ++links > kMostLinks) {
      fail("%s cannot be opened: %s", path.c_str(), std::strerror(size < 0 ? error : ELOOP));
    }
    if (for_all && !is_trusted(status_of(link).st_uid))
      fail("%s must not be behind somebody else's link (%s)", path.c_str(), name.c_str());
    push_names(names, std::string(target, static_cast<size_t>(size)));
    if (target[0] == '/') at = Descriptor(open("/", kAnyFolder));
  }
  return at;
}

bool write_all(int descriptor, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(done));
  }
  return true;
}

}  // namespace

PrivateFolder::PrivateFolder(const std::string& path, bool make) : path_(path) {
  Descriptor found = walk(path, make);
  judge(path, status_of(found));
  descriptor_ = found.release();
}

PrivateFolder::~PrivateFolder() { close(descriptor_); }

int PrivateFolder::open_file(const std::string& name) const {
  Descriptor file(
      openat(descriptor_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (file.get() < 0) return -1;
  const struct stat found = status_of(file);
  if (!S_ISREG(found.st_mode)) return -1;
  judge(path_ + "/" + name, found);
  return file.release();
}

bool PrivateFolder::has(const std::string& name) const {
  return Descriptor(open_file(name)).get() >= 0;
}

std::optional<std::vector<uint8_t>> PrivateFolder::read(const std::string& name) const {
  const Descriptor file(open_file(name));
  if (file.get() < 0) return std::nullopt;
  const off_t size = status_of(file).st_size;
  if (size > kMostBytes) return std::nullopt;
  std::vector<uint8_t> bytes(static_cast<size_t>(size));
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    done += static_cast<size_t>(got);
  }
  return bytes;
}

void PrivateFolder::write(const std::string& name, std::span<const uint8_t> bytes) const {
  static std::atomic<int> counter{0};
  const std::string aside =
      "." + name + "." + std::to_string(getpid()) + "-" + std::to_string(counter++);
  bool whole = false;
  {
    const Descriptor file(openat(descriptor_, aside.c_str(),
                                 O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    whole = file.get() >= 0 && fchmod(file.get(), 0600) == 0 && write_all(file.get(), bytes);
  }
  if (!whole || renameat(descriptor_, aside.c_str(), descriptor_, name.c_str()) != 0)
    unlinkat(descriptor_, aside.c_str(), 0);
}

}  // namespace xesim::driver
