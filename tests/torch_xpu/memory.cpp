// Memory of torch's XPU backend. It behaves as torch's caching allocator does, a freed block goes
// to the next who asks on the same stream without a wait, and is stricter than that: blocks have
// exactly the size that was asked for, so that a simulator sees who leaves them, and what is freed
// is overwritten in the order of its stream, so that who reads on reads NaN. A pool of its own, of
// torch.xpu.MemPool or of graphs, has blocks that nobody else gets.
#include <c10/xpu/XPUCachingAllocator.h>

#include <algorithm>
#include <array>
#include <functional>
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
  MempoolId_t pool{};                    // {0, 0} is all others'
  bool captured = false;                 // replays of a graph write it
  std::vector<sycl::queue*> others{};    // record_stream
  std::vector<sycl::event> last_uses{};  // by the others, once freed
};

bool is_recorded(const Block& block) {
  using sycl::ext::oneapi::experimental::queue_state;
  return block.queue_is_torchs && block.queue->ext_oneapi_get_state() == queue_state::recording;
}

// Blocks that may be used again, by the queue and the size that they were made for.
using Freed = std::multimap<std::pair<sycl::queue*, size_t>, Block>;

using PoolOfDevice = std::pair<DeviceIndex, MempoolId_t>;

struct PrivatePool {
  int uses = 0;  // by objects, graphs and threads that allocate in it
  Freed freed{};
};

// Who allocates in a pool: the innermost that the filter agrees to.
struct Route {
  PoolOfDevice pool;
  std::function<bool(sycl::queue*)> filter;
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
    block.pool = pool_of(block);
    block.captured = is_recorded(block);
    block.data = take_freed(block);
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
    const bool capturing = is_recorded(block);
    if (block.captured == capturing) overwrite(block);  // each replay does, or nobody but now
    if (!capturing) {
      for (auto* queue : block.others) {
        block.last_uses.push_back(queue->ext_oneapi_submit_barrier());
      }
    }
    const auto pool = pools_.find({block.device, block.pool});
    const auto key = std::make_pair(block.queue, block.size);
    (pool == pools_.end() ? freed_ : pool->second.freed).emplace(key, std::move(block));
  }

  DeleterFnPtr raw_deleter() const override { return &free_block; }

  void emptyCache(MempoolId_t = {0, 0}) override {
    std::lock_guard<std::mutex> lock(mutex_);
    release(freed_);
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

  void use_pool(PoolOfDevice pool) {
    std::lock_guard<std::mutex> lock(mutex_);
    ++pools_[pool].uses;
  }
  int uses_of_pool(PoolOfDevice pool) {
    std::lock_guard<std::mutex> lock(mutex_);
    return existing(pool).uses;
  }
  void begin(Route route) {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(route_to(route.pool) == routes_.end(),
                "beginAllocateToPool: already recording to mempool_id");
    ++pools_[route.pool].uses;
    routes_.push_back(std::move(route));
  }
  void end(PoolOfDevice pool) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = route_to(pool);
    TORCH_CHECK(found != routes_.end(), "endAllocatePool: not currently recording to mempool_id");
    routes_.erase(found);
  }
  // The last use takes the freed blocks with it; what is live then is freed like any other.
  void release_pool(PoolOfDevice pool) {
    std::lock_guard<std::mutex> lock(mutex_);
    PrivatePool& released = existing(pool);
    if (--released.uses > 0) return;
    release(released.freed);
    freed_.merge(released.freed);
    pools_.erase(pool);
    for (auto& [data, block] : live_) {
      if (PoolOfDevice(block.device, block.pool) != pool) continue;
      block.pool = {};
      block.captured = false;
    }
  }

  // A block is a segment here. Those of one pool, or of all.
  std::vector<CachingDeviceAllocator::SegmentInfo> segments(MempoolId_t pool) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<CachingDeviceAllocator::SegmentInfo> all;
    const auto add = [&](const Block& block, bool live) {
      if (pool != MempoolId_t{} && block.pool != pool) return;
      auto& segment = all.emplace_back();
      segment.device = block.device;
      segment.address = reinterpret_cast<size_t>(block.data);
      segment.total_size = block.size;
      segment.requested_size = segment.allocated_size = segment.active_size = live * block.size;
      segment.stream = block.queue;
      segment.owner_private_pool_id = block.pool;
      segment.blocks.push_back({block.size, live * block.size, 0, live, live});
    };
    for (const auto& [data, block] : live_) add(block, true);
    for (const auto& [key, block] : freed_) add(block, false);
    for (const auto& [id, of] : pools_) {
      for (const auto& [key, block] : of.freed) add(block, false);
    }
    return all;
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

  PrivatePool& existing(PoolOfDevice pool) {
    const auto found = pools_.find(pool);
    TORCH_CHECK(found != pools_.end(), "There is no memory pool (", pool.second.first, ", ",
                pool.second.second, ")");
    return found->second;
  }

  std::vector<Route>::iterator route_to(PoolOfDevice pool) {
    return std::find_if(routes_.begin(), routes_.end(),
                        [&](const Route& route) { return route.pool == pool; });
  }

  MempoolId_t pool_of(const Block& block) const {
    for (auto route = routes_.rbegin(); route != routes_.rend(); ++route) {
      const auto [device, pool] = route->pool;
      if (device == block.device && route->filter(block.queue)) return pool;
    }
    return {};
  }

  void* take_freed(const Block& wanted) {
    Freed& freed =
        wanted.pool == MempoolId_t{} ? freed_ : existing({wanted.device, wanted.pool}).freed;
    const auto [first, last] = freed.equal_range({wanted.queue, wanted.size});
    for (auto it = first; it != last; ++it) {
      if (!std::all_of(it->second.last_uses.begin(), it->second.last_uses.end(), is_complete)) {
        continue;
      }
      void* data = it->second.data;
      freed.erase(it);
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
      release(freed_);
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
  // Once their work is done, which cannot be waited for while a graph records it.
  void release(Freed& freed) {
    std::erase_if(freed, [&](const auto& entry) {
      const Block& block = entry.second;
      if (is_recorded(block)) return false;
      if (block.queue_is_torchs) block.queue->wait_and_throw();
      sycl::event::wait(block.last_uses);
      free_on_device(block);
      return true;
    });
  }

  std::mutex mutex_;
  bool ready_ = false;
  std::array<Stats, kMostDevices> stats_;
  std::unordered_map<void*, Block> live_;
  Freed freed_;
  std::map<PoolOfDevice, PrivatePool> pools_;
  std::vector<Route> routes_;
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

SnapshotInfo snapshot(MempoolId_t pool) { return {memory().segments(pool), {}, {}}; }

void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, XPUAllocator* with) {
  TORCH_CHECK_NOT_IMPLEMENTED(!with, "MemPool: allocator must be None in this backend");
  memory().use_pool({device, pool});
}
void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                         std::function<bool(sycl::queue*)> filter) {
  memory().begin({{device, pool}, std::move(filter)});
}
void endAllocateToPool(DeviceIndex device, MempoolId_t pool) { memory().end({device, pool}); }
void releasePool(DeviceIndex device, MempoolId_t pool) { memory().release_pool({device, pool}); }
int getPoolUseCount(DeviceIndex device, MempoolId_t pool) {
  return memory().uses_of_pool({device, pool});
}

}  // namespace c10::xpu::XPUCachingAllocator

namespace c10::xpu {

// Ids of graphs and of users differ in which of the two numbers is 0.
std::atomic<CaptureId_t> MemPool::uid_{1}, MemPool::uuid_{1};

MempoolId_t MemPool::graph_pool_handle(bool is_user_created) {
  return is_user_created ? MempoolId_t{0, uid_++} : MempoolId_t{uuid_++, 0};
}

MemPool::MemPool(XPUCachingAllocator::XPUAllocator* allocator, bool is_user_created,
                 bool use_on_oom)
    : allocator_(allocator),
      is_user_created_(is_user_created),
      id_(graph_pool_handle(is_user_created)),
      device_(current_device()) {
  TORCH_CHECK_NOT_IMPLEMENTED(!use_on_oom, "MemPool: use_on_oom must be False in this backend");
  XPUCachingAllocator::createOrIncrefPool(device_, id_, allocator);
}

MemPool::~MemPool() { XPUCachingAllocator::releasePool(device_, id_); }
MempoolId_t MemPool::id() { return id_; }
XPUCachingAllocator::XPUAllocator* MemPool::allocator() { return allocator_; }
int MemPool::use_count() { return XPUCachingAllocator::getPoolUseCount(device_, id_); }
DeviceIndex MemPool::device() { return device_; }

}  // namespace c10::xpu
