#include "driver/compiler.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "base/fault.hpp"
#include "base/hash.hpp"
#include "driver/build_cache.hpp"
#include "driver/private_folder.hpp"
#include "driver/process.hpp"
#include "driver/spirv.hpp"
#include "machine/checks.hpp"

namespace xesim::driver {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRemedy =
    "Get a current one into a private folder: python -m xeflash.sim.get_ocloc (in the source tree: "
    "perf/xesim/get-ocloc)";

struct Ocloc {
  std::string path;
  std::string version_text;  // "26.27.039122"
  int major = 0;             // year of the release
  std::string identity;      // its version, and a digest that changes when the compiler does
  // Releases of 2022 write Intel's older container unless told otherwise.
  bool needs_zebin_option() const { return major < 23; }
  bool knows(Family family) const { return !isa_of(family).xe2 || major >= 26; }
};

bool is_program(const std::string& path) {
  return access(path.c_str(), X_OK) == 0 && !fs::is_directory(path);
}

// XEFLASH_OCLOC, then the private folder, then PATH. Empty if there is none; throws Fault if others
// may have written the one in the private folder.
std::string find_ocloc() {
  const char* given = std::getenv("XEFLASH_OCLOC");
  if (given != nullptr && *given != 0) {
    if (!is_program(given)) fail("XEFLASH_OCLOC names %s, which is not a program", given);
    return fs::absolute(given).string();
  }
  const std::string own = cache_folder() + "/ocloc/ocloc";
  if (is_program(own)) {
    PrivateFolder(fs::path(own).parent_path(), false).has("ocloc");
    return fs::absolute(own).string();
  }
  std::istringstream path(std::getenv("PATH") == nullptr ? "" : std::getenv("PATH"));
  for (std::string folder; std::getline(path, folder, ':');) {
    const std::string candidate = fs::absolute(fs::path(folder) / "ocloc").string();
    if (!folder.empty() && is_program(candidate)) return candidate;
  }
  return {};
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// All releases answer this query with "year.week.build", on the output or in a file of the query's
// name.
void ask_version(Ocloc& ocloc) {
  const ScratchFolder folder;
  const Outcome outcome = run_program({ocloc.path, "query", "OCL_DRIVER_VERSION"}, folder.path());
  std::string text = read_text(folder.path() + "/OCL_DRIVER_VERSION");
  if (text.empty()) text = outcome.output;
  const size_t digits = text.find_first_of("0123456789");
  const size_t end =
      digits == std::string::npos ? digits : text.find_first_not_of("0123456789.", digits);
  if (digits != std::string::npos) ocloc.version_text = text.substr(digits, end - digits);
  if (ocloc.version_text.find('.') == std::string::npos) {
    fail("%s does not tell its version (asked with: query OCL_DRIVER_VERSION); it said: %s",
         ocloc.path.c_str(), outcome.output.substr(0, 400).c_str());
  }
  ocloc.major = std::atoi(ocloc.version_text.c_str());
}

// A file's size and time, which differ between builds of a compiler.
std::string stamp(const std::string& path) {
  struct stat status{};
  stat(path.c_str(), &status);
  return std::to_string(status.st_size) + ' ' + std::to_string(status.st_mtim.tv_sec) + '.' +
         std::to_string(status.st_mtim.tv_nsec);
}

// The compiler proper (libigc) is a library with a version of its own, which this query loads; the
// dynamic linker tells which files that are.
void ask_identity(Ocloc& ocloc) {
  const ScratchFolder folder;
  const Outcome outcome = run_program(
      {"/usr/bin/env", "LD_DEBUG=libs", ocloc.path, "query", "IGC_REVISION"}, folder.path());
  std::set<std::string> files;
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);) {
    for (const std::string told : {"calling init: ", "initialize program: "}) {
      const size_t at = line.find(told);
      if (at == std::string::npos) continue;
      const fs::path file = line.substr(at + told.size());
      if (file.is_absolute()) files.insert(file.filename().string() + ' ' + stamp(file));
    }
  }
  std::string all;
  for (const std::string& file : files) all += file + '\n';
  all += XESIM_COMPILING;  // of what is done here to flags and SPIR-V before they go to ocloc
  char digest[24];
  std::snprintf(digest, sizeof digest, ".%016llx", static_cast<unsigned long long>(hash_of(all)));
  ocloc.identity = ocloc.version_text + digest;
}

Ocloc current_ocloc() {
  static std::mutex mutex;
  static std::map<std::string, Ocloc> known;
  Ocloc ocloc;
  ocloc.path = find_ocloc();
  if (ocloc.path.empty()) fail("no ocloc (Intel's offline compiler) was found. %s", kRemedy);
  std::lock_guard lock(mutex);
  Ocloc& entry = known[ocloc.path + ' ' + stamp(ocloc.path)];
  if (entry.path.empty()) {
    ask_version(ocloc);
    ask_identity(ocloc);
    entry = ocloc;
  }
  return entry;
}

// Level Zero's names for the compiler's options. What begins otherwise (-vc-codegen, -doubleGRF,
// ...) is the compiler's own and goes through.
std::string ocloc_options(const std::string& flags) {
  std::istringstream words(flags);
  std::string options;
  for (std::string word; words >> word;) {
    if (word.starts_with("-ze-opt-level=")) {
      word = word.back() == '0' ? "-cl-opt-disable" : "";  // higher levels are the default
    } else if (word == "-ze-opt-greater-than-4GB-buffer-required") {
      word = "-cl-intel-greater-than-4GB-buffer-required";
    } else if (word.starts_with("-ze-") && word != "-ze-opt-large-register-file") {
      word.replace(0, 4, "-cl-");
    }
    if (!word.empty()) options += (options.empty() ? "" : " ") + word;
  }
  return options;
}

std::vector<uint8_t> find_output(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder + "/out")) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".spv" || extension == ".gen" || extension == ".dbg" || extension == ".bc")
      continue;
    const std::string bytes = read_text(entry.path().string());
    if (bytes.empty()) continue;
    return {bytes.begin(), bytes.end()};
  }
  return {};
}

Build run_ocloc(const Ocloc& ocloc, const DeviceModel& model, std::span<const uint8_t> spirv,
                const std::string& options) {
  const ScratchFolder folder;
  const std::string source = folder.path() + "/kernel.spv";
  fs::create_directory(folder.path() + "/out");
  std::ofstream(source, std::ios::binary)
      .write(reinterpret_cast<const char*>(spirv.data()),
             static_cast<std::streamsize>(spirv.size()));
  std::vector<std::string> arguments{ocloc.path,
                                     "compile",
                                     "-file",
                                     source,
                                     "-spirv_input",
                                     "-device",
                                     model.ocloc_device,
                                     "-output",
                                     "kernel",
                                     "-output_no_suffix",
                                     "-out_dir",
                                     folder.path() + "/out"};
  if (!options.empty()) arguments.insert(arguments.end(), {"-options", options});
  if (ocloc.needs_zebin_option()) {
    arguments.insert(arguments.end(), {"-internal_options", "-cl-intel-allow-zebin"});
  }
  Outcome outcome = run_program(arguments, folder.path());
  Build build;
  build.log = std::move(outcome.output);
  if (!outcome.started) build.log += "\n" + std::string(kRemedy);
  if (outcome.started && outcome.status == 0) build.binary = find_output(folder.path());
  if (build.binary.empty()) {
    build.log += "\nxesim: ocloc " + ocloc.version_text + " (" + ocloc.path +
                 ") built nothing for " + model.id + ", exit code " +
                 std::to_string(outcome.status) + ", options: " + options + "\n";
  }
  return build;
}

}  // namespace

Build compile(const DeviceModel& model, std::span<const uint8_t> spirv, const std::string& flags) {
  try {
    const Ocloc ocloc = current_ocloc();
    if (!ocloc.knows(model.family)) {
      fail("ocloc %s (%s) is too old for %s, which needs 26 or newer. %s",
           ocloc.version_text.c_str(), ocloc.path.c_str(), model.id, kRemedy);
    }
    std::vector<uint8_t> flushing;
    if (current_checks().denormals == Checks::Denormals::kFlush) {
      flushing = flush_denormals(spirv);
      spirv = flushing;
    }
    const BuildInput input{spirv, model.ocloc_device, ocloc_options(flags), ocloc.identity};
    if (auto binary = load_build(input)) return {std::move(*binary), {}};
    Build build = run_ocloc(ocloc, model, spirv, input.options);
    if (!build.binary.empty()) store_build(input, build.binary);
    return build;
  } catch (const std::exception& error) {
    return {{}, std::string("xesim: ") + error.what() + "\n"};
  }
}

std::string compiler_version() {
  try {
    return current_ocloc().identity;
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace xesim::driver
