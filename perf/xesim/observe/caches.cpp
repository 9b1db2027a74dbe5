#include "observe/caches.hpp"

#include <map>

#include "machine/thread.hpp"
#include "observe/record.hpp"

namespace xesim {
namespace {

std::map<const void*, Cache>& l2_of_devices() {
  static std::map<const void*, Cache> caches;
  return caches;
}

// One of another size begins empty.
Cache& l2_of(const Chip& chip, uint64_t bytes) {
  auto& caches = l2_of_devices();
  const auto found = caches.find(chip.device);
  if (found != caches.end() && found->second.bytes() == bytes) return found->second;
  return caches.insert_or_assign(chip.device, Cache(bytes)).first->second;
}

}  // namespace

Caches::Caches(const Chip& chip, const Checks& checks, uint64_t l1_bytes)
    : l2_(l2_of(chip, checks.l2_bytes != 0 ? checks.l2_bytes : chip.l2_bytes)),
      l1_(l1_bytes == 0 ? 0 : chip.cores, Cache(l1_bytes)),
      base_(Memory::instance().base()) {}

void Caches::on_message(const Thread& thread, const MessageEvent& event) {
  if (event.space != Space::kGlobal) return;
  Cache* l1 = l1_.empty() ? nullptr : &l1_[thread.group->core];
  const size_t count = event.pieces.size();
  for (size_t i = 0; i < count;) {
    // Pieces that follow each other are one: together they may write a whole line.
    const uint64_t begin = event.pieces[i].address;
    uint64_t end = begin;
    for (; i < count && event.pieces[i].address == end; ++i) end += event.pieces[i].bytes;
    // A prefetch may ask for what is not there.
    if (event.access == Access::kPrefetch && Memory::instance().find(begin, 1) == nullptr) continue;
    constexpr uint64_t n = Cache::kLineBytes;
    const uint64_t first = begin - base_, last = end - 1 - base_;
    for (uint64_t line = first / n; line <= last / n; ++line) {
      const uint64_t above = line == first / n ? ~uint64_t{0} << first % n : ~uint64_t{0};
      const uint64_t below = line == last / n ? ~uint64_t{0} >> (n - 1 - last % n) : ~uint64_t{0};
      touch(l1, line, event.access, above & below);
    }
  }
}

void Caches::touch(Cache* l1, uint64_t number, Access access, uint64_t bytes) {
  const bool prefetch = access == Access::kPrefetch, write = access == Access::kWrite;
  if (l1 != nullptr && (prefetch || access == Access::kRead)) {
    const Cache::Use use = l1->use(number);
    if (use.missed) {
      use.line.unused = prefetch;
    } else if (!prefetch && use.line.unused) {
      use.line.unused = false;
      if (Cache::Line* line = l2_.find(number)) line->unused = false;
    }
    if (!use.missed) return;
  }
  const Cache::Use use = l2_.use(number);
  Cache::Line& line = use.line;
  if (use.missed) {
    written_ += use.gone.dirty;
    lost_ += use.gone.unused;
    line.unused = prefetch;
  }
  if (!prefetch) line.unused = false;
  if (write) {
    line.held |= bytes;
  } else {
    ++asked_;
    read_ += (bytes & ~line.held) != 0;
    line.held = ~uint64_t{0};
  }
  line.dirty |= write || access == Access::kAtomic;
}

void Caches::report(LaunchRecord& record) {
  record.l2_read = asked_ * Cache::kLineBytes;
  record.memory_read = read_ * Cache::kLineBytes;
  record.memory_written = written_ * Cache::kLineBytes;
  record.prefetches_lost = lost_;
}

void empty_l2() { l2_of_devices().clear(); }

}  // namespace xesim
