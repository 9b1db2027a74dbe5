// Native binaries run without SYCL: what benchmarks of other projects' kernels and tests of the
// machine call.
#include "launch/launch.hpp"

#include <cstring>

#include "capi/capi.hpp"

namespace {

struct Loaded {
  std::shared_ptr<xesim::Module> module;
  std::string device;
  xesim::Chip chip;
};

}  // namespace

XESIM_API char* xesim_load(const char* device, const uint8_t* file, uint64_t bytes, void** module) {
  return xesim::guarded([&] {
    *module = nullptr;
    const xesim::driver::DeviceModel& model = xesim::driver::model_named(device);
    *module = new Loaded{xesim::load_module({file, bytes}, model.family, model.dpas), device,
                         model.chip(&model)};
  });
}

XESIM_API void xesim_unload(void* module) { delete static_cast<Loaded*>(module); }

// Device memory that the host may touch through *host.
XESIM_API char* xesim_allocate(uint64_t bytes, uint64_t* address, uint8_t** host) {
  return xesim::guarded([&] {
    const xesim::Allocation* a =
        xesim::Memory::instance().allocate(bytes, 4096, xesim::MemoryKind::kDevice, nullptr, false);
    *address = a->address;
    *host = a->data;
  });
}
XESIM_API char* xesim_release(uint64_t address) {
  return xesim::guarded([&] { xesim::Memory::instance().release(address); });
}

// Argument i is the `sizes[i]` bytes at data[i], or, if data[i] is null, local memory of that size.
XESIM_API char* xesim_launch(void* module, const char* kernel, const uint32_t* groups,
                             const uint32_t* local, uint32_t arguments, const uint8_t* const* data,
                             const uint64_t* sizes) {
  return xesim::guarded([&] {
    const Loaded& loaded = *static_cast<const Loaded*>(module);
    xesim::LaunchDesc desc;
    desc.kernel = xesim::find_kernel(*loaded.module, kernel);
    if (desc.kernel == nullptr)
      throw xesim::Fault("the binary has no kernel " + std::string(kernel));
    desc.device = loaded.device;
    desc.chip = loaded.chip;
    for (size_t d = 0; d < 3; ++d) {
      desc.groups[d] = groups[d];
      desc.local[d] = local[d];
    }
    for (size_t i = 0; i < arguments; ++i) {
      desc.arguments.emplace_back();
      desc.slm_bytes.push_back(data[i] == nullptr ? sizes[i] : 0);
      if (data[i] != nullptr) desc.arguments.back().assign(data[i], data[i] + sizes[i]);
    }
    xesim::launch(desc);
  });
}
