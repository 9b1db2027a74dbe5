// Streams through memory, for what caches keep of it.
#include "esimd.hpp"

using sycl::ext::oneapi::experimental::properties;
constexpr properties kCached{esimd::cache_hint_L1<esimd::cache_hint::cached>,
                             esimd::cache_hint_L2<esimd::cache_hint::cached>};
constexpr int kDwords = 64;  // of a message

// Each group reads so many dwords of its own, several times.
ESIMD_INLINE void read_all(const uint32_t* p, uint32_t* sums, uint32_t dwords, uint32_t times) {
  const auto group = static_cast<uint32_t>(item().get_group(0));
  simd<uint32_t, kDwords> sum = 0u;
  for (uint32_t time = 0; time < times; ++time) {
    for (uint32_t at = 0; at < dwords; at += kDwords) {
      sum += esimd::block_load<uint32_t, kDwords>(p + group * dwords + at);
    }
  }
  esimd::block_store<uint32_t, kDwords>(sums + group * kDwords, sum);
}
XE_KERNEL stream(const uint32_t* p, uint32_t* sums, uint32_t dwords, uint32_t times) {
  read_all(p, sums, dwords, times);
}
XE_KERNEL stream_beside_slm(const uint32_t* p, uint32_t* sums, uint32_t dwords, uint32_t times) {
  esimd::slm_init<64 << 10>();
  esimd::slm_block_store<uint32_t, 16>(0, simd<uint32_t, 16>(1u));
  read_all(p, sums, dwords, times);
}

XE_KERNEL prefetch_and_read(const uint32_t* p, uint32_t* sums, uint32_t dwords) {
  for (uint32_t at = 0; at < dwords; at += kDwords) {
    esimd::prefetch<uint32_t, kDwords>(p + at, kCached);
  }
  read_all(p, sums, dwords, 1);
}

// Reads the first 1024 bytes again and again beside the rest.
XE_KERNEL keep_reading(const uint32_t* p, uint32_t* sums, uint32_t dwords) {
  simd<uint32_t, kDwords> sum = 0u;
  for (uint32_t at = 0; at < dwords; at += kDwords) {
    sum += esimd::block_load<uint32_t, kDwords>(p + at);
    sum += esimd::block_load<uint32_t, kDwords>(p + at % (4 * kDwords));
  }
  esimd::block_store<uint32_t, kDwords>(sums, sum);
}

XE_KERNEL fill(uint32_t* p, uint32_t dwords) {
  for (uint32_t at = 0; at < dwords; at += kDwords) {
    esimd::block_store<uint32_t, kDwords>(p + at, simd<uint32_t, kDwords>(7u));
  }
}

// The first half of every line.
XE_KERNEL fill_halves(uint32_t* p, uint32_t dwords) {
  for (uint32_t at = 0; at < dwords; at += 16) {
    esimd::block_store<uint32_t, 8>(p + at, simd<uint32_t, 8>(7u));
  }
}

XE_KERNEL add_one(uint32_t* p) {
  esimd::atomic_update<esimd::atomic_op::add, uint32_t, 1>(p, simd<uint32_t, 1>(0u),
                                                           simd<uint32_t, 1>(1u));
}
