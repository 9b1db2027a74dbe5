#include "launch/module.hpp"

#include <cstring>

#include "insns/executor.hpp"

namespace xesim {
namespace {

// "const" or "const.string" of ".data.const", ".bss.const", ...; empty for other sections. `zeros`:
// it is the zero-filled part, which follows the initialised one.
std::string data_name(const std::string& section, bool& zeros) {
  for (const char* prefix : {".data.", ".bss."}) {
    const size_t length = std::strlen(prefix);
    if (section.compare(0, length, prefix) == 0) {
      zeros = prefix[1] == 'b';
      return section.substr(length);
    }
  }
  return "";
}

constexpr const char* kCrossThreadOffset = "__INTEL_PATCH_CROSS_THREAD_OFFSET_OFF_R0";

uint64_t symbol_value(const Kernel& kernel, const Zebin& zebin, const Relocation& r) {
  if (r.symbol == kCrossThreadOffset) return 0;  // nothing precedes the cross-thread data here
  if (r.section.empty())
    fail("kernel %s needs the undefined symbol %s", kernel.code.info.name.c_str(),
         r.symbol.c_str());
  if (r.is_function) {
    fail(
        "kernel %s takes the address of the function %s: calls through addresses are not "
        "implemented",
        kernel.code.info.name.c_str(), r.symbol.c_str());
  }
  bool zeros = false;
  const std::string name = data_name(r.section, zeros);
  const auto found = kernel.data->sections.find(name);
  if (name.empty() || found == kernel.data->sections.end()) {
    fail("kernel %s refers to %s in section %s, which is not a data section",
         kernel.code.info.name.c_str(), r.symbol.c_str(), r.section.c_str());
  }
  const uint64_t base = zeros ? zebin.data.at(name).bytes.size() : 0;
  return found->second->address + base + r.value;
}

void relocate(Kernel& kernel, const Zebin& zebin) {
  std::vector<uint8_t>& text = kernel.code.text;
  for (const Relocation& r : kernel.code.relocations) {
    if (r.type == 0) continue;
    const uint64_t value = symbol_value(kernel, zebin, r);
    const auto patch = [&](const void* bytes, size_t n) {
      if (r.offset > text.size() || n > text.size() - r.offset) {
        fail("kernel %s: a relocation at 0x%llx lies outside of its code",
             kernel.code.info.name.c_str(), static_cast<unsigned long long>(r.offset));
      }
      std::memcpy(text.data() + r.offset, bytes, n);
    };
    const uint32_t low = static_cast<uint32_t>(value), high = static_cast<uint32_t>(value >> 32);
    const uint16_t word = static_cast<uint16_t>(value);
    switch (r.type) {
      case 1:
        patch(&value, 8);
        break;
      case 2:
      case 5:
        patch(&low, 4);
        break;
      case 3:
        patch(&high, 4);
        break;
      case 7:
        patch(&word, 2);
        break;
      default:
        fail("kernel %s: relocation type %u is not implemented", kernel.code.info.name.c_str(),
             r.type);
    }
  }
}

}  // namespace

ModuleData::~ModuleData() {
  for (const auto& [name, allocation] : sections) Memory::instance().release(allocation->address);
}

std::shared_ptr<const Program> Kernel::program() {
  const std::lock_guard lock(mutex);
  if (decoded == nullptr) {
    decoded = std::make_shared<const Program>(
        decode_program(isa_of(family), code.text, code.info.grf_count));
  }
  return decoded;
}

uint64_t Kernel::section_address(const std::string& name) const {
  const auto found = data->sections.find(name);
  return found == data->sections.end() ? 0 : found->second->address;
}

std::shared_ptr<Module> load_module(std::span<const uint8_t> binary, Family family, bool has_dpas) {
  Zebin zebin = read_zebin(binary, family);
  auto data = std::make_shared<ModuleData>();
  for (const auto& [name, section] : zebin.data) {
    const uint64_t bytes = section.bytes.size() + section.zeros;
    Allocation* a = Memory::instance().allocate(bytes, 64, MemoryKind::kInternal, nullptr, false);
    data->sections[name] = a;
    if (!section.bytes.empty()) std::memcpy(a->data, section.bytes.data(), section.bytes.size());
    std::memset(a->data + section.bytes.size(), 0, section.zeros);
  }
  auto module = std::make_shared<Module>();
  for (KernelCode& code : zebin.kernels) {
    if (code.info.has_dpas && !has_dpas) {
      fail("kernel %s multiplies matrices, and the device has no matrix unit",
           code.info.name.c_str());
    }
    auto kernel = std::make_shared<Kernel>();
    kernel->family = family;
    kernel->code = std::move(code);
    kernel->data = data;
    relocate(*kernel, zebin);
    module->kernels.push_back(std::move(kernel));
  }
  return module;
}

std::span<const std::shared_ptr<Kernel>> kernels_of(const Module& module) { return module.kernels; }

std::shared_ptr<Kernel> find_kernel(const Module& module, const std::string& name) {
  for (const auto& kernel : module.kernels) {
    if (kernel->code.info.name == name) return kernel;
  }
  return nullptr;
}

const KernelInfo& info_of(const Kernel& kernel) { return kernel.code.info; }

}  // namespace xesim
