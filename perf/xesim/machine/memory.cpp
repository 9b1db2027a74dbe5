#include "machine/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <deque>
#include <map>
#include <mutex>

#include "base/fault.hpp"

namespace xesim {
namespace {

// Allocations are separated by at least this much unmapped address space. Level Zero's own granule
// for large device allocations is 64 KiB as well.
constexpr uint64_t kGuard = 64 << 10;
constexpr uint64_t kLargestReservation = uint64_t{1} << 42,
                   kSmallestReservation = uint64_t{1} << 36;
// Freed allocations that are remembered, for messages and for callers that still hold a pointer to
// one.
constexpr size_t kRemembered = 1 << 16;

const char* name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kDevice:
      return "device";
    case MemoryKind::kHost:
      return "host";
    case MemoryKind::kShared:
      return "shared";
    case MemoryKind::kInternal:
      return "internal";
  }
  return "unknown";
}

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

std::string describe(const Allocation& a) {
  char text[128];
  std::snprintf(text, sizeof text, "%" PRIu64 "-byte %s allocation at 0x%" PRIx64, a.bytes,
                name_of(a.kind), a.address);
  return text;
}

void* map_or_fail(void* address, uint64_t bytes, int protection, int flags) {
  void* p =
      mmap(address, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
  if (p == MAP_FAILED)
    fail("the host has no address space for %" PRIu64 " bytes of simulated memory", bytes);
  return p;
}

using Snapshot = std::vector<Allocation*>;  // live ones by address

}  // namespace

struct Memory::State {
  std::mutex mutex;
  std::atomic<uint64_t> version{1};
  uint64_t base = 0, end = 0, next = 0;
  uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  uint64_t ids = 0;
  std::map<uint64_t, std::unique_ptr<Allocation>> live;
  std::deque<std::unique_ptr<Allocation>> freed;  // oldest first
  std::shared_ptr<const Snapshot> snapshot;
  uint64_t snapshot_version = 0;

  void reserve() {
    for (uint64_t bytes = kLargestReservation; bytes >= kSmallestReservation; bytes /= 2) {
      void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED) continue;
      base = reinterpret_cast<uint64_t>(p);
      end = base + bytes;
      next = base;
      return;
    }
    fail("the host has no address space to reserve for simulated memory");
  }

  // The next free range at or after `next`; from the start again once the end is reached, so that
  // an address is used again only after the whole range went by.
  uint64_t take(uint64_t bytes, uint64_t alignment) {
    for (int round = 0; round < 2; ++round) {
      uint64_t at = round_up(next + kGuard, alignment);
      auto above = live.upper_bound(at);
      if (above != live.begin()) --above;
      for (; above != live.end(); ++above) {
        const Allocation& a = *above->second;
        if (a.address + a.bytes + kGuard <= at) continue;
        if (at + bytes + kGuard <= a.address) break;
        at = round_up(a.address + a.bytes + kGuard, alignment);
      }
      if (at + bytes + kGuard <= end && at + bytes > at) {
        next = round_up(at + bytes, page);
        return at;
      }
      next = base;
    }
    fail("out of simulated address space: %" PRIu64 " bytes wanted", bytes);
  }
};

Memory::Memory() : state_(std::make_shared<State>()) { state_->reserve(); }

Memory& Memory::instance() {
  static Memory* memory =
      new Memory;  // never destroyed: kernels and the host may use it until the process ends
  return *memory;
}

Allocation* Memory::allocate(uint64_t bytes, uint64_t alignment, MemoryKind kind, void* owner,
                             bool hide_from_host) {
  if (bytes == 0) bytes = 1;
  if (alignment < 64 || (alignment & (alignment - 1)) != 0) {
    fail("an alignment of %" PRIu64 " is not a power of two of at least 64", alignment);
  }
  State& s = *state_;
  std::lock_guard lock(s.mutex);
  if (bytes > s.end - s.base || alignment > s.end - s.base)
    fail("%" PRIu64 " bytes are more than the address space", bytes);
  const uint64_t mapped = round_up(bytes, s.page);
  auto a = std::make_unique<Allocation>();
  a->address = s.take(mapped, std::max(alignment, s.page));
  a->bytes = bytes;
  a->kind = kind;
  a->owner = owner;
  a->id = ++s.ids;
  // Hidden memory lies elsewhere and the address that the program sees stays inaccessible.
  void* where = hide_from_host ? nullptr : reinterpret_cast<void*>(a->address);
  a->data = static_cast<uint8_t*>(
      map_or_fail(where, mapped, PROT_READ | PROT_WRITE, where == nullptr ? 0 : MAP_FIXED));
  Allocation* result = a.get();
  s.live.emplace(result->address, std::move(a));
  s.version.fetch_add(1, std::memory_order_release);
  return result;
}

void Memory::release(uint64_t address) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  const auto it = s.live.find(address);
  if (it == s.live.end()) {
    lock.unlock();
    fail("freed address 0x%" PRIx64 " is not the start of a live allocation: it %s", address,
         explain(address, 1).c_str());
  }
  std::unique_ptr<Allocation> a = std::move(it->second);
  s.live.erase(it);
  const uint64_t mapped = round_up(a->bytes, s.page);
  if (reinterpret_cast<uint64_t>(a->data) == a->address) {
    map_or_fail(a->data, mapped, PROT_NONE, MAP_FIXED);
  } else {
    munmap(a->data, mapped);
  }
  a->data = nullptr;
  a->live = false;
  s.freed.push_back(std::move(a));
  if (s.freed.size() > kRemembered) s.freed.pop_front();
  s.version.fetch_add(1, std::memory_order_release);
}

Allocation* Memory::find(uint64_t address, uint64_t bytes) {
  // Each thread keeps the list it saw last, so that nothing is shared until an allocation is made
  // or freed.
  thread_local std::shared_ptr<const Snapshot> snapshot;
  thread_local uint64_t version = 0;
  State& s = *state_;
  if (version != s.version.load(std::memory_order_acquire)) {
    std::lock_guard lock(s.mutex);
    version = s.version.load(std::memory_order_relaxed);
    if (s.snapshot_version != version) {
      auto built = std::make_shared<Snapshot>();
      built->reserve(s.live.size());
      for (const auto& entry : s.live) built->push_back(entry.second.get());
      s.snapshot = std::move(built);
      s.snapshot_version = version;
    }
    snapshot = s.snapshot;
  }
  const auto above =
      std::upper_bound(snapshot->begin(), snapshot->end(), address,
                       [](uint64_t value, const Allocation* a) { return value < a->address; });
  if (above == snapshot->begin()) return nullptr;
  Allocation* a = *(above - 1);
  const uint64_t offset = address - a->address;
  return offset < a->bytes && bytes <= a->bytes - offset ? a : nullptr;
}

bool Memory::owns(uint64_t address) const {
  return address >= state_->base && address < state_->end;
}

std::string Memory::explain(uint64_t address, uint64_t bytes) {
  State& s = *state_;
  std::lock_guard lock(s.mutex);
  char text[256];
  if (address < 4096) return "is in no allocation: it is a null pointer, or an offset from one";
  const auto above = s.live.upper_bound(address);
  const Allocation* below = above == s.live.begin() ? nullptr : std::prev(above)->second.get();
  if (below != nullptr && address - below->address < below->bytes) {
    const uint64_t left = below->bytes - (address - below->address);
    if (bytes <= left) return "is in the live " + describe(*below);
    std::snprintf(text, sizeof text,
                  "starts inside, and ends %" PRIu64 " bytes past the end of, the ", bytes - left);
    return text + describe(*below);
  }
  for (auto a = s.freed.rbegin(); a != s.freed.rend(); ++a) {
    if (address >= (*a)->address && address - (*a)->address < (*a)->bytes) {
      return "is in the " + describe(**a) + ", which was freed";
    }
  }
  if (address < s.base || address >= s.end) {
    return "is in no allocation: it is not USM memory (the host's own heap or stack, or a garbage "
           "pointer)";
  }
  const uint64_t past = below == nullptr ? ~uint64_t{0} : address - (below->address + below->bytes);
  const uint64_t before = above == s.live.end() ? ~uint64_t{0} : above->first - address;
  if (past == ~uint64_t{0} && before == ~uint64_t{0}) return "is in no allocation: none is live";
  if (past == 0) return "is right behind the end of the " + describe(*below);
  if (past <= before) {
    std::snprintf(text, sizeof text, "is %" PRIu64 " bytes past the end of the ", past);
    return text + describe(*below);
  }
  std::snprintf(text, sizeof text, "is %" PRIu64 " bytes before the start of the ", before);
  return text + describe(*above->second);
}

uint64_t Memory::base() const { return state_->base; }

uint64_t Memory::version() const { return state_->version.load(std::memory_order_acquire); }

}  // namespace xesim
