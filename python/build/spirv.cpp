// Compiles SYCL or ESIMD source to SPIR-V without a device: calls the entry point of libsycl-jit
// that the SYCL runtime itself calls. It is not a documented interface (the same in intel-sycl-rt
// 2025.3 to 2026.2), so it serves the build and `xeflash compile` for devices that are not there;
// at run time the documented one is used, see runtime.cpp.
//   usage: spirv LIBSYCL_JIT SOURCE OUTPUT [OPTION...]
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

// The interface's types, laid out as libsycl-jit has them. They own memory of its allocator, so
// nothing is freed here.
struct InMemoryFile {
  const char *path, *contents;
};
template <class T>
struct View {
  const T* begin;
  size_t size;
};
template <class T>
struct DynArray {
  T* values = nullptr;
  size_t size = 0;
  ~DynArray() {}  // not trivial: decides how results are returned
};
struct DynString {
  char* chars = nullptr;
  ~DynString() {}
};
struct Property {
  DynString name;
  bool is_number;
  uint32_t number;
  DynArray<uint8_t> bytes;
};
struct PropertySet {
  DynString name;
  DynArray<Property> values;
};
struct Image {
  uint32_t format;
  uint64_t address_bits;
  const uint8_t* start;
  uint64_t size;
  DynArray<DynString> symbols;
  DynArray<PropertySet> properties;
};
struct Result {
  int error;
  DynArray<Image> images;
  DynString options;
  DynArray<char> cached_ir;
  DynString log;
  ~Result() {}
};
constexpr uint32_t kSpirv = 2;
using CompileSycl = Result (*)(InMemoryFile source, View<InMemoryFile> includes,
                               View<const char*> options, View<char> cached_ir, bool save_ir,
                               uint32_t format);

int fail(const std::string& message) {
  std::cerr << "spirv: " << message << "\n";
  return 1;
}

int run(int argc, char** argv) {
  if (argc < 4) return fail("usage: spirv LIBSYCL_JIT SOURCE OUTPUT [OPTION...]");
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) return fail(dlerror());
  const auto compile = reinterpret_cast<CompileSycl>(dlsym(library, "compileSYCL"));
  if (!compile) return fail(std::string(argv[1]) + " has no compileSYCL");
  std::ifstream file(argv[2]);
  if (!file) return fail(std::string("cannot read ") + argv[2]);
  std::stringstream text;
  text << file.rdbuf();
  const std::string source = text.str();
  const std::vector<const char*> options(argv + 4, argv + argc);
  const Result result = compile({argv[2], source.c_str()}, {nullptr, 0},
                                {options.data(), options.size()}, {nullptr, 0}, false, kSpirv);
  if (result.log.chars && *result.log.chars) std::cerr << result.log.chars << "\n";
  if (result.error) return fail("compilation failed");
  if (result.images.size != 1)
    return fail("expected one image, got " + std::to_string(result.images.size));
  const Image& image = result.images.values[0];
  const std::string aside = std::string(argv[3]) + ".part";
  std::ofstream output(aside, std::ios::binary);
  output.write(reinterpret_cast<const char*>(image.start),
               static_cast<std::streamsize>(image.size));
  output.close();
  if (!output || std::rename(aside.c_str(), argv[3]) != 0)
    return fail(std::string("cannot write ") + argv[3]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int status = run(argc, argv);
  std::fflush(nullptr);
  std::_Exit(status);  // libsycl-jit's destructors are not meant to run outside a SYCL program
}
