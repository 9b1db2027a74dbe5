// Kernels that break one rule each when their arguments say so, and keep it otherwise.
#include "esimd.hpp"

// Sixteen dwords from in + shift dwords to out.
XE_KERNEL copy_block(const uint32_t* in, uint32_t* out, int shift) {
  store<uint32_t, 16>(out, load<uint32_t, 16>(in + shift));
}
// The same the other way round: out + shift.
XE_KERNEL store_block(const uint32_t* in, uint32_t* out, int shift) {
  store<uint32_t, 16>(out + shift, load<uint32_t, 16>(in));
}
// Every other dword from in + shift dwords on.
XE_KERNEL gather_some(const uint32_t* in, uint32_t* out, int shift) {
  const simd<uint32_t, 16> at(0, 8);
  store<uint32_t, 16>(out, esimd::gather<uint32_t, 16>(in + shift, at));
}

// Stores 16 dwords, of which eight get a value only if `all`.
XE_KERNEL half_defined(const uint32_t* in, uint32_t* out, int all) {
  simd<uint32_t, 16> v;
  v.select<8, 1>(0) = load<uint32_t, 8>(in);
  if (all) v.select<8, 1>(8) = load<uint32_t, 8>(in + 8);
  store<uint32_t, 16>(out, v);
}
// Local memory that nobody wrote, to global memory.
XE_KERNEL empty_slm(uint32_t* out, int write) {
  esimd::slm_init<64>();
  if (write) esimd::slm_block_store<uint32_t, 16>(0, simd<uint32_t, 16>(5u));
  const simd<uint32_t, 16> v = esimd::slm_block_load<uint32_t, 16>(0);
  store<uint32_t, 16>(out, v);
}

// Neighbours exchange a dword through local memory.
XE_KERNEL slm_exchange(uint32_t* out, int wait) {
  esimd::slm_init<64 * 4>();
  const uint32_t i = item().get_local_linear_id(), n = item().get_local_range(0);
  esimd::slm_scalar_store<uint32_t>(((i + 1) % n) * 4, i);
  if (wait) esimd::barrier();
  esimd::slm_scalar_store<uint32_t>((32 + i) * 4, esimd::slm_scalar_load<uint32_t>(i * 4));
  out[i] = esimd::slm_scalar_load<uint32_t>((32 + i) * 4);
}
// The same through global memory.
XE_KERNEL global_exchange(uint32_t* cells, uint32_t* out, int wait) {
  const uint32_t i = item().get_local_linear_id(), n = item().get_local_range(0);
  cells[(i + 1) % n] = i;
  if (wait) {
    esimd::fence<esimd::memory_kind::global, esimd::fence_flush_op::none,
                 esimd::fence_scope::group>();
    esimd::barrier();
  }
  out[i] = cells[i];
}
// Each group writes its cell and reads the one that is `step` further.
XE_KERNEL between_groups(uint32_t* cells, uint32_t* out, int step) {
  const uint32_t g = item().get_group(0), n = item().get_group_range(0);
  cells[g] = g;
  out[g] = cells[(g + step) % n];
}
// All groups count in one cell, with an atomic operation or without.
XE_KERNEL count(uint32_t* cell, int atomic) {
  if (atomic) {
    esimd::atomic_update<esimd::atomic_op::inc, uint32_t, 1>(cell, simd<uint32_t, 1>(0));
  } else {
    cell[0] = cell[0] + 1;
  }
}

// out[t] = how many threads of the group came before thread t.
XE_KERNEL tickets(uint32_t* counter, uint32_t* out) {
  const simd<uint32_t, 1> mine =
      esimd::atomic_update<esimd::atomic_op::inc, uint32_t, 1>(counter, simd<uint32_t, 1>(0));
  out[item().get_local_linear_id()] = mine[0];
}

// exp2, 1 / x, sqrt, 1 / sqrt, log2, sin and cos of 16 numbers.
XE_KERNEL functions(const float* in, float* out) {
  const auto x = load<float, 16>(in);
  store<float, 16>(out, esimd::exp2(x));
  store<float, 16>(out + 16, esimd::inv(x));
  store<float, 16>(out + 32, esimd::sqrt(x));
  store<float, 16>(out + 48, esimd::rsqrt(x));
  store<float, 16>(out + 64, esimd::log2(x));
  store<float, 16>(out + 80, esimd::sin(x));
  store<float, 16>(out + 96, esimd::cos(x));
}

// A group barrier that thread 0 does not reach if `all` is 0.
XE_KERNEL meet(uint32_t* out, int all) {
  const uint32_t i = item().get_local_linear_id();
  if (i != 0 || all) esimd::barrier();
  out[i] = i;
}
#if XE_LANES == 16
// A named barrier for `expected` producers, of which two come.
XE_KERNEL meet_named(uint32_t* out, int expected) {
  esimd::named_barrier_init<4>();
  const uint32_t i = item().get_local_linear_id();
  esimd::named_barrier_signal(2, 0, expected, expected);
  esimd::named_barrier_wait(2);
  out[i] = i;
}
#endif

XE_KERNEL slm_at(uint32_t* out, int byte) {
  esimd::slm_init<1024>();
  esimd::slm_scalar_store<uint32_t>(byte, 3);
  out[0] = esimd::slm_scalar_load<uint32_t>(byte);
}

// A loop that ends only if the cell says so.
XE_KERNEL forever(const volatile uint32_t* cell, uint32_t* out) {
  uint32_t n = 0;
  while (cell[0] == 0) ++n;
  out[0] = n;
}

// 2D blocks of 8-bit and 16-bit elements, plain, and 64-bit ones, transposed.
XE_KERNEL surface_u8(const uint8_t* p, uint8_t* out, uint32_t width, uint32_t height,
                     uint32_t pitch, int x, int y) {
  store<uint8_t, 128>(
      out, xesimd::lsc_load_2d<uint8_t, 16, 8>(p, width - 1, height - 1, pitch - 1, x, y));
}
XE_KERNEL surface_u16(const uint16_t* p, uint16_t* out, uint32_t width, uint32_t height,
                      uint32_t pitch, int x, int y) {
  store<uint16_t, 128>(
      out, xesimd::lsc_load_2d<uint16_t, 16, 8>(p, width - 1, height - 1, pitch - 1, x, y));
}
XE_KERNEL surface_u64(const uint64_t* p, uint64_t* out, uint32_t width, uint32_t height,
                      uint32_t pitch, int x, int y) {
  store<uint64_t, 32>(
      out, xesimd::lsc_load_2d<uint64_t, 4, 8, 1, true>(p, width - 1, height - 1, pitch - 1, x, y));
}
XE_KERNEL surface_store(const uint16_t* in, uint16_t* p, uint32_t width, uint32_t height,
                        uint32_t pitch, int x, int y) {
  xesimd::lsc_store_2d<uint16_t, 16, 8>(p, width - 1, height - 1, pitch - 1, x, y,
                                        load<uint16_t, 128>(in));
}
