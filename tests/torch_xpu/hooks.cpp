// What torch's core asks of the backend: its guard, generators, pinned memory.
#include <ATen/Functions.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/XPUHooksInterface.h>
#include <c10/xpu/XPUCachingAllocator.h>
#include <c10/xpu/XPUEvent.h>
#include <c10/xpu/XPUFunctions.h>
#include <c10/xpu/impl/XPUGuardImpl.h>

#include <algorithm>
#include <cstring>

namespace torch_xpu {
namespace {
using namespace c10::xpu;

c10::DeviceIndex given_or_current(c10::DeviceIndex device) {
  return device == -1 ? c10::xpu::current_device() : device;
}

// Seed and offset of a counter-based generator; its state is their 16 bytes, as that of torch's
// own.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex device)
      : c10::GeneratorImpl(c10::Device(c10::kXPU, device),
                           c10::DispatchKeySet(c10::DispatchKey::XPU)) {}

  void set_current_seed(uint64_t seed) override { state_ = {seed, 0}; }
  uint64_t current_seed() const override { return state_.seed; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(true));
    return state_.seed;
  }
  void set_offset(uint64_t offset) override {
    TORCH_CHECK(offset % 4 == 0, "offset must be a multiple of 4");
    state_.offset = offset;
  }
  uint64_t get_offset() const override { return state_.offset; }
  void set_state(const c10::TensorImpl& bytes) override {
    TORCH_CHECK(bytes.numel() == sizeof(state_), "RNG state is wrong size");
    std::memcpy(&state_, bytes.data(), sizeof(state_));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto bytes = at::empty({static_cast<int64_t>(sizeof(state_))}, at::TensorOptions(at::kByte));
    std::memcpy(bytes.mutable_data_ptr(), &state_, sizeof(state_));
    return bytes.getIntrusivePtr();
  }

 private:
  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index());
    copy->state_ = state_;
    return copy;
  }
  struct {
    uint64_t seed, offset;
  } state_{c10::default_rng_seed_val, 0};
};

// Host memory that devices read: a tensor in it is one of the CPU. The cache is torch's own.
struct PinnedMemory : at::CachingHostAllocatorImpl<XPUStream, XPUEvent> {
  void allocate_host_memory(size_t size, void** data) override {
    *data = sycl::malloc_host(size, get_device_context());
  }
  void free_block(at::HostBlock<XPUStream>* block) override {
    sycl::free(block->ptr_, get_device_context());
  }
  void record_stream(std::optional<std::vector<XPUEvent>>& events, XPUStream stream) override {
    events->emplace_back().record(stream);
  }
  bool query_event(XPUEvent& event) override { return event.query(); }
  XPUStream get_current_stream() const override { return getCurrentXPUStream(); }
  bool stream_is_capturing(XPUStream stream) const override { return stream.is_capturing(); }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
};

void free_pinned(void* block);
struct PinnedCache final : at::CachingHostAllocatorInterface<PinnedMemory, free_pinned> {};
PinnedCache& pinned() {
  static auto& cache = *new PinnedCache;
  return cache;
}
void free_pinned(void* block) { pinned().free(block); }

struct XPUHooks final : at::XPUHooksInterface {
  void init() const override {
    XPUCachingAllocator::init(c10::xpu::device_count_ensure_non_zero());
  }
  bool hasXPU() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return c10::xpu::device_count() > 0; }
  std::string showConfig() const override { return "XPU backend of the tests"; }

  // DLPack's number of a device: its place among all SYCL devices of the process.
  int32_t getGlobalIdxFromDevice(const at::Device& device) const override {
    const auto all = sycl::device::get_devices();
    const auto& mine = get_raw_device(given_or_current(device.index()));
    return static_cast<int32_t>(std::find(all.begin(), all.end(), mine) - all.begin());
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    static auto& all = *[] {
      auto* all = new std::vector<at::Generator>;
      for (c10::DeviceIndex i = 0; i < c10::xpu::device_count(); ++i) {
        all->push_back(at::make_generator<Generator>(i));
      }
      return all;
    }();
    return all.at(static_cast<size_t>(given_or_current(device)));
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(given_or_current(device));
  }

  c10::Device getDeviceFromPtr(void* data) const override {
    return {c10::kXPU, get_device_idx_from_pointer(data)};
  }
  c10::DeviceIndex getNumGPUs() const override { return c10::xpu::device_count(); }
  c10::DeviceIndex deviceCount() const override { return c10::xpu::device_count(); }
  c10::DeviceIndex current_device() const override { return c10::xpu::current_device(); }
  c10::DeviceIndex getCurrentDevice() const override { return c10::xpu::current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { c10::xpu::set_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return c10::xpu::exchange_device(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return c10::xpu::maybe_exchange_device(device);
  }
  void deviceSynchronize(c10::DeviceIndex device) const override { syncStreamsOnDevice(device); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return isAvailable(); }

  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned(); }
  bool isPinnedPtr(const void* data) const override {
    return isAvailable() &&
           sycl::get_pointer_type(data, get_device_context()) == sycl::usm::alloc::host;
  }
};

}  // namespace
}  // namespace torch_xpu

namespace at {
using torch_xpu::XPUHooks;
REGISTER_XPU_HOOKS(XPUHooks);
REGISTER_HOST_ALLOCATOR(kXPU, &torch_xpu::pinned());
}  // namespace at
namespace c10::xpu::impl {
C10_REGISTER_GUARD_IMPL(XPU, XPUGuardImpl);
}
