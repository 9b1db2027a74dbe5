// Memory of torch's XPU backend. It behaves as torch's caching allocator does, a freed block goes
// to the next who asks on the same stream without a wait, and is stricter than that: blocks have
// exactly the size that was asked for, so that a simulator sees who leaves them, and what is freed
// is overwritten in the order of its stream, so that who reads on reads NaN.
#include "memory.hpp"

#include <c10/xpu/XPUCachingAllocator.h>

#include <array>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace c10::xpu::XPUCachingAllocator {

std::atomic<XPUAllocator*> allocator;

namespace {

constexpr size_t kAlignment = 512;  // as torch's
constexpr int kOverwritten = 0xff;
constexpr size_t kMostDevices = 64;

struct Block {
  void* data;
  size_t size;
  DeviceIndex device;
  sycl::queue* queue;                    // whose order it is freed and used again in
  bool queue_is_torchs;                  // else it may be gone when the block is freed
  uint64_t graph = 0;                    // that it belongs to
  std::vector<sycl::queue*> others{};    // record_stream
  std::vector<sycl::event> last_uses{};  // by the others, once freed
};

bool is_complete(const sycl::event& event) {
  return event.get_info<sycl::info::event::command_execution_status>() ==
         sycl::info::event_command_status::complete;
}

class Memory final : public XPUAllocator {
 public:
  void init(DeviceIndex) override { ready_ = true; }
  bool initialized() override { return ready_; }

  DataPtr allocate(size_t size) override {
    const c10::Device device(kXPU, current_device());
    void* data = size ? raw_alloc(size) : nullptr;
    return {data, data, &free_block, device};
  }

  void* raw_alloc(size_t size) override {
    const XPUStream stream = getCurrentXPUStream();
    std::lock_guard<std::mutex> lock(mutex_);
    Block block{nullptr, size, stream.device_index(), &stream.queue(), (stream.id() & 1) != 0};
    if (const auto recorded = recording_.find(block.queue); recorded != recording_.end()) {
      block.graph = recorded->second;
    } else {
      block.data = take_freed(block);
    }
    if (!block.data) block.data = allocate_on_device(block);
    auto& s = stats(block.device);
    increase({&s.allocated_bytes, &s.active_bytes, &s.requested_bytes}, size);
    live_.emplace(block.data, block);
    return block.data;
  }

  void raw_delete(void* data) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = live_.find(data);
    if (found == live_.end()) return;
    Block block = std::move(found->second);
    live_.erase(found);
    auto& s = stats(block.device);
    decrease({&s.allocated_bytes, &s.active_bytes, &s.requested_bytes}, block.size);
    const bool records = recording_.count(block.queue) > 0;
    if (block.graph) {
      if (records) overwrite(block);  // a node of the graph: each replay overwrites
      of_graphs_[block.graph].push_back(std::move(block));
      return;
    }
    for (auto* queue : block.others) block.last_uses.push_back(queue->ext_oneapi_submit_barrier());
    if (!records) overwrite(block);
    const auto key = std::make_pair(block.queue, block.size);
    freed_.emplace(key, std::move(block));
  }

  DeleterFnPtr raw_deleter() const override { return &free_block; }

  void emptyCache(MempoolId_t = {0, 0}) override {
    std::lock_guard<std::mutex> lock(mutex_);
    release_freed();
  }

  void recordStream(const DataPtr& data, c10::Stream stream) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = live_.find(data.get());
    if (found == live_.end()) return;
    sycl::queue& queue = XPUStream(stream).queue();
    if (&queue != found->second.queue) found->second.others.push_back(&queue);
  }

  CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats(device);
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& s = stats(device);
    for (auto* stat :
         {&s.allocated_bytes, &s.active_bytes, &s.requested_bytes, &s.reserved_bytes}) {
      (*stat)[0].reset_peak();
    }
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t all = get_raw_device(device).get_info<sycl::info::device::global_mem_size>();
    return {all - static_cast<size_t>(stats(device).reserved_bytes[0].current), all};
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    getCurrentXPUStream().queue().memcpy(to, from, size);
  }

  uint64_t begin_graph(sycl::queue& queue) {
    std::lock_guard<std::mutex> lock(mutex_);
    return recording_[&queue] = ++last_graph_;
  }
  void end_graph(sycl::queue& queue) {
    std::lock_guard<std::mutex> lock(mutex_);
    recording_.erase(&queue);
  }
  void release_graph(uint64_t graph) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Block& block : of_graphs_[graph]) free_on_device(block);
    of_graphs_.erase(graph);
    for (auto& [data, block] : live_) {  // results that outlive it are freed like any other
      if (block.graph == graph) block.graph = 0;
    }
  }

 private:
  using Stats = CachingDeviceAllocator::DeviceStats;

  static void free_block(void* data) { allocator.load()->raw_delete(data); }

  static void increase(std::initializer_list<CachingAllocator::StatArray*> all, size_t size) {
    for (auto* stat : all) (*stat)[0].increase(size);
  }
  static void decrease(std::initializer_list<CachingAllocator::StatArray*> all, size_t size) {
    for (auto* stat : all) (*stat)[0].decrease(size);
  }
  Stats& stats(DeviceIndex device) { return stats_[static_cast<size_t>(device)]; }

  static void overwrite(Block& block) {
    if (block.queue_is_torchs) block.queue->memset(block.data, kOverwritten, block.size);
  }

  void* take_freed(const Block& wanted) {
    const auto [first, last] = freed_.equal_range({wanted.queue, wanted.size});
    for (auto it = first; it != last; ++it) {
      if (!std::all_of(it->second.last_uses.begin(), it->second.last_uses.end(), is_complete)) {
        continue;
      }
      void* data = it->second.data;
      freed_.erase(it);
      return data;
    }
    return nullptr;
  }

  void* allocate_on_device(const Block& block) {
    const auto allocate = [&] {
      return sycl::aligned_alloc_device(kAlignment, block.size, get_raw_device(block.device),
                                        get_device_context());
    };
    void* data = allocate();
    if (!data) {
      release_freed();
      data = allocate();
    }
    TORCH_CHECK_WITH(OutOfMemoryError, data, "XPU out of memory. Tried to allocate ", block.size,
                     " bytes");
    increase({&stats(block.device).reserved_bytes}, block.size);
    return data;
  }
  void free_on_device(const Block& block) {
    sycl::free(block.data, get_device_context());
    decrease({&stats(block.device).reserved_bytes}, block.size);
  }
  void release_freed() {
    if (freed_.empty()) return;
    for (DeviceIndex device = 0; device < device_count(); ++device) syncStreamsOnDevice(device);
    for (const auto& [key, block] : freed_) free_on_device(block);
    freed_.clear();
  }

  std::mutex mutex_;
  bool ready_ = false;
  std::array<Stats, kMostDevices> stats_;
  std::unordered_map<void*, Block> live_;
  std::multimap<std::pair<sycl::queue*, size_t>, Block> freed_;
  std::unordered_map<sycl::queue*, uint64_t> recording_;  // queue, graph
  std::unordered_map<uint64_t, std::vector<Block>> of_graphs_;
  uint64_t last_graph_ = 0;
};

Memory& memory() {
  static auto& memory = *new Memory;
  return memory;
}

const bool installed = [] {
  allocator = &memory();
  c10::SetAllocator(kXPU, &memory());
  return true;
}();

}  // namespace

double getMemoryFraction(DeviceIndex) { return 1; }

}  // namespace c10::xpu::XPUCachingAllocator

namespace torch_xpu {
using c10::xpu::XPUCachingAllocator::memory;

uint64_t begin_graph_memory(sycl::queue& queue) { return memory().begin_graph(queue); }
void end_graph_memory(sycl::queue& queue) { memory().end_graph(queue); }
void release_graph_memory(uint64_t graph) { memory().release_graph(graph); }

}  // namespace torch_xpu
