// A loaded binary: the code of its kernels, decoded at the first launch, and its data sections in
// device memory.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "launch/launch.hpp"
#include "machine/program.hpp"

namespace xesim {

// Constants and globals live as long as a kernel of the module does.
struct ModuleData {
  std::map<std::string, Allocation*> sections;  // "const", "global", "const.string"
  ~ModuleData();
};

struct Kernel {
  Family family;
  KernelCode code;
  std::shared_ptr<ModuleData> data;
  std::mutex mutex;
  std::shared_ptr<const Program> decoded;

  std::shared_ptr<const Program> program();                 // decodes at the first call
  uint64_t section_address(const std::string& name) const;  // 0 if the module has none
};

struct Module {
  std::vector<std::shared_ptr<Kernel>> kernels;
};

}  // namespace xesim
