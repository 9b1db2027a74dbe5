// Threads of a group: local memory, barriers of all kinds.
#include "esimd.hpp"

constexpr int kWords = 16;  // of a thread's row

// Every thread writes a row of local memory and reads a column.
XE_KERNEL transpose(const uint32_t* in, uint32_t* out) {
  esimd::slm_init<16 * kWords * 4>();
  const uint32_t i = item().get_local_linear_id(), first = item().get_group(0) * 16 * kWords;
  const auto row = load<uint32_t, kWords>(in + first + i * kWords);
  esimd::slm_block_store<uint32_t, kWords>(i * kWords * 4, row);
  esimd::barrier();
  const simd<uint32_t, kWords> at(i * 4, kWords * 4);
  const simd<uint32_t, kWords> column = esimd::slm_gather<uint32_t, kWords>(at);
  store<uint32_t, kWords>(out + first + i * kWords, column);
}

// The sum of all threads' numbers, by halving: a barrier a step.
XE_KERNEL tree_sum(const uint32_t* in, uint32_t* out) {
  esimd::slm_init<32 * 4>();
  const uint32_t i = item().get_local_linear_id(), n = item().get_local_range(0);
  esimd::slm_scalar_store<uint32_t>(i * 4, in[item().get_global_linear_id()]);
  for (uint32_t half = n / 2; half != 0; half /= 2) {
    esimd::barrier();
    if (i < half) {
      const uint32_t sum = esimd::slm_scalar_load<uint32_t>(i * 4) +
                           esimd::slm_scalar_load<uint32_t>((i + half) * 4);
      esimd::slm_scalar_store<uint32_t>(i * 4, sum);
    }
  }
  if (i == 0) out[item().get_group(0)] = esimd::slm_scalar_load<uint32_t>(0);
}

// Elements of every width through local memory: scattered by a permutation, read as blocks.
template <class T, uint32_t kAt>
ESIMD_INLINE void through_slm(const T* in, T* out, simd<uint32_t, 16> order) {
  const auto v = load<T, 16>(in);
  esimd::slm_scatter<T, 16>(kAt + order * sizeof(T), v);
  const simd<T, 16> block = esimd::slm_block_load<T, 16>(kAt, esimd::overaligned_tag<16>{});
  store<T, 16>(out, block);
}
XE_KERNEL slm_widths(const uint8_t* in8, uint8_t* out8, const uint16_t* in16, uint16_t* out16,
                     const uint32_t* in32, uint32_t* out32, const uint64_t* in64, uint64_t* out64,
                     const uint32_t* order) {
  esimd::slm_init<16 * 16>();
  const auto permutation = load<uint32_t, 16>(order);
  through_slm<uint8_t, 0>(in8, out8, permutation);
  through_slm<uint16_t, 16>(in16, out16, permutation);
  through_slm<uint32_t, 64>(in32, out32, permutation);
  through_slm<uint64_t, 128>(in64, out64, permutation);
}

// A split barrier: what lies between signal and wait is not ordered by it, the rest is.
XE_KERNEL split(const uint32_t* in, uint32_t* out) {
  esimd::slm_init<16 * kWords * 4>();
  const uint32_t i = item().get_local_linear_id();
  const auto row = load<uint32_t, kWords>(in + i * kWords);
  esimd::slm_block_store<uint32_t, kWords>(i * kWords * 4, row);
  esimd::fence<esimd::memory_kind::local, esimd::fence_flush_op::none, esimd::fence_scope::group>();
  __asm__ volatile("sbarrier.signal");
  simd<uint32_t, kWords> sum = row * 3u;
  __asm__ volatile("sbarrier.wait");
  sum += esimd::slm_block_load<uint32_t, kWords>((i + 1) % 16 * kWords * 4);
  store<uint32_t, kWords>(out + i * kWords, sum);
}

#if XE_LANES == 16
// Threads 0 and 1 produce, 2 and 3 consume; then the even and the odd threads meet apart.
XE_KERNEL named(const uint32_t* in, uint32_t* out) {
  esimd::slm_init<4 * kWords * 4>();
  esimd::named_barrier_init<6>();
  const uint32_t i = item().get_local_linear_id();
  if (i < 2) {
    const auto row = load<uint32_t, kWords>(in + i * kWords);
    esimd::slm_block_store<uint32_t, kWords>(i * kWords * 4, row * 2u);
    esimd::named_barrier_signal(1, 1, 2, 2);
  } else {
    esimd::named_barrier_signal(1, 2, 2, 2);
    esimd::named_barrier_wait(1);
    const simd<uint32_t, kWords> row =
        esimd::slm_block_load<uint32_t, kWords>((i - 2) * kWords * 4);
    store<uint32_t, kWords>(out + (i - 2) * kWords, row + 1u);
  }
  const uint32_t side = 3 + (i & 1);
  esimd::slm_scalar_store<uint32_t>((2 * kWords + i) * 4, in[i]);
  esimd::named_barrier_signal(side, 0, 2, 2);
  esimd::named_barrier_wait(side);
  out[2 * kWords + i] = esimd::slm_scalar_load<uint32_t>((2 * kWords + (i ^ 2)) * 4);
}

// A pipeline: one thread fills two buffers in turn, the other empties them.
XE_KERNEL pipeline(const uint32_t* in, uint32_t* out, int steps) {
  esimd::slm_init<2 * kWords * 4>();
  esimd::named_barrier_init<8>();
  const uint32_t i = item().get_local_linear_id();
  simd<uint32_t, kWords> sum = 0u;
  for (int step = 0; step < steps; ++step) {
    const uint8_t full = 1 + step % 2, empty = 3 + step % 2;
    const uint32_t at = step % 2 * kWords * 4;
    if (i == 0) {
      if (step >= 2) {
        esimd::named_barrier_signal(empty, 2, 1, 1);
        esimd::named_barrier_wait(empty);
      }
      esimd::slm_block_store<uint32_t, kWords>(at, load<uint32_t, kWords>(in + step * kWords));
      esimd::named_barrier_signal(full, 1, 1, 1);
    } else {
      esimd::named_barrier_signal(full, 2, 1, 1);
      esimd::named_barrier_wait(full);
      sum = sum * 3u + esimd::slm_block_load<uint32_t, kWords>(at);
      if (step + 2 < steps) esimd::named_barrier_signal(empty, 1, 1, 1);
    }
  }
  if (i == 1) store<uint32_t, kWords>(out, sum);
}
#endif
