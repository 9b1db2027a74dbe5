// Every atomic operation on sixteen lanes, several of which may meet at one place; the old values
// are kept. The places of operation i begin at memory + 16 i, in global memory and in SLM.
#include "esimd.hpp"

using Op = esimd::atomic_op;
constexpr int kCount = 16;

constexpr int operands_of(Op op) {
  if (op == Op::inc || op == Op::dec || op == Op::load) return 0;
  return op == Op::cmpxchg || op == Op::fcmpxchg ? 2 : 1;
}

template <Op op, bool kSlm, class T>
ESIMD_INLINE simd<T, kCount> change(T* memory, uint32_t first, simd<uint32_t, kCount> offsets,
                                    simd<T, kCount> a, simd<T, kCount> b, simd_mask<kCount> on) {
  offsets += first;
  if constexpr (operands_of(op) == 0) {
    if constexpr (kSlm)
      return esimd::slm_atomic_update<op, T, kCount>(offsets, on);
    else
      return esimd::atomic_update<op, T, kCount>(memory, offsets, on);
  } else if constexpr (operands_of(op) == 1) {
    if constexpr (kSlm)
      return esimd::slm_atomic_update<op, T, kCount>(offsets, a, on);
    else
      return esimd::atomic_update<op, T, kCount>(memory, offsets, a, on);
  } else {
    if constexpr (kSlm)
      return esimd::slm_atomic_update<op, T, kCount>(offsets, b, a, on);
    else
      return esimd::atomic_update<op, T, kCount>(memory, offsets, b, a, on);
  }
}

template <bool kSlm, class T, Op... kOps>
ESIMD_INLINE void change_all(T* memory, const uint32_t* offsets, const T* operands, T* old,
                             uint32_t lanes) {
  constexpr int n = sizeof...(kOps) * kCount;
  if constexpr (kSlm) {
    esimd::slm_init<n * sizeof(T)>();
    for (int i = 0; i < n; i += 8)
      esimd::slm_block_store<T, 8>(i * sizeof(T), load<T, 8>(memory + i));
  }
  const simd<uint32_t, kCount> at = load<uint32_t, kCount>(offsets);
  const simd<T, kCount> a = load<T, kCount>(operands), b = load<T, kCount>(operands + kCount);
  const simd<uint32_t, kCount> bits =
      (simd<uint32_t, kCount>(lanes) >> simd<uint32_t, kCount>(0, 1)) & 1u;
  const simd_mask<kCount> on = bits != 0u;
  int i = 0;
  const auto one = [&]<Op op>() {
    simd<T, kCount> seen = change<op, kSlm, T>(memory, i * kCount * sizeof(T), at, a, b, on);
    seen.merge(simd<T, kCount>(T(0)), !on);
    store<T, kCount>(old + i * kCount, seen);
    ++i;
  };
  (one.template operator()<kOps>(), ...);
  if constexpr (kSlm) {
    for (int k = 0; k < n; k += 8) {
      const simd<T, 8> piece = esimd::slm_block_load<T, 8>(k * sizeof(T));
      store<T, 8>(memory + k, piece);
    }
  }
}

#define UNSIGNED_OPS                                                                            \
  Op::add, Op::sub, Op::inc, Op::dec, Op::umin, Op::umax, Op::cmpxchg, Op::bit_and, Op::bit_or, \
      Op::bit_xor, Op::load, Op::store
#define SIGNED_OPS Op::smin, Op::smax
#define EXCHANGE Op::xchg  // 32 bits only
#define FLOAT_OPS Op::fadd, Op::fsub, Op::fmin, Op::fmax, Op::fcmpxchg
#define GLOBAL(NAME, T, ...)                                                             \
  XE_KERNEL global_##NAME(T* memory, const uint32_t* offsets, const T* operands, T* old, \
                          uint32_t lanes) {                                              \
    change_all<false, T, __VA_ARGS__>(memory, offsets, operands, old, lanes);            \
  }
#define BOTH(NAME, T, ...)                                                            \
  GLOBAL(NAME, T, __VA_ARGS__)                                                        \
  XE_KERNEL slm_##NAME(T* memory, const uint32_t* offsets, const T* operands, T* old, \
                       uint32_t lanes) {                                              \
    change_all<true, T, __VA_ARGS__>(memory, offsets, operands, old, lanes);          \
  }
BOTH(u16, uint16_t, UNSIGNED_OPS)
BOTH(u32, uint32_t, UNSIGNED_OPS)
BOTH(exchange, uint32_t, EXCHANGE)
BOTH(s16, int16_t, SIGNED_OPS)
BOTH(s32, int32_t, SIGNED_OPS)
BOTH(f16, sycl::half, FLOAT_OPS)
BOTH(f32, float, FLOAT_OPS)
#if XE_LANES == 16  // dg2 has neither doubles nor 64-bit atomics in SLM
BOTH(u64, uint64_t, UNSIGNED_OPS)
BOTH(s64, int64_t, SIGNED_OPS)
BOTH(f64, double, FLOAT_OPS)
#else
GLOBAL(u64, uint64_t, UNSIGNED_OPS)
GLOBAL(s64, int64_t, SIGNED_OPS)
#endif
