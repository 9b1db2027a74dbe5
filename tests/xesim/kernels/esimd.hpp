// What the kernels of the simulator's tests share: the entry points' attributes, whole vectors from
// and to memory.
#pragma once

#include <sycl/ext/intel/esimd.hpp>
#include <sycl/ext/intel/experimental/esimd/memory.hpp>
#include <sycl/ext/oneapi/free_function_queries.hpp>
#include <sycl/sycl.hpp>

#define XE_KERNEL                               \
  extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY( \
      (sycl::ext::oneapi::experimental::nd_range_kernel<1>)) SYCL_ESIMD_KERNEL void

namespace esimd = sycl::ext::intel::esimd;
namespace xesimd = sycl::ext::intel::experimental::esimd;
namespace xmx = sycl::ext::intel::esimd::xmx;
using bf16 = sycl::ext::oneapi::bfloat16;
using esimd::simd;
using esimd::simd_mask;

inline auto item() { return sycl::ext::oneapi::this_work_item::get_nd_item<1>(); }

constexpr int largest_power(int limit, int n) {
  int power = limit;
  while (power > n) power /= 2;
  return power;
}

// Block messages hold powers of two up to 64 dwords: a vector of any whole number of dwords in
// pieces.
template <int kFirst, int kDwords, int kCount>
ESIMD_INLINE void copy_pieces_in(const uint32_t* p, simd<uint32_t, kCount>& v) {
  if constexpr (kFirst < kDwords) {
    constexpr int n = largest_power(64, kDwords - kFirst);
    v.template select<n, 1>(kFirst) = esimd::block_load<uint32_t, n>(p + kFirst);
    copy_pieces_in<kFirst + n, kDwords>(p, v);
  }
}
template <int kFirst, int kDwords, int kCount>
ESIMD_INLINE void copy_pieces_out(uint32_t* p, simd<uint32_t, kCount>& v) {
  if constexpr (kFirst < kDwords) {
    constexpr int n = largest_power(64, kDwords - kFirst);
    simd<uint32_t, n> piece = v.template select<n, 1>(kFirst);
    esimd::block_store<uint32_t, n>(p + kFirst, piece);
    copy_pieces_out<kFirst + n, kDwords>(p, v);
  }
}

template <class T, int kCount>
ESIMD_INLINE simd<T, kCount> load(const void* p) {
  simd<uint32_t, kCount * sizeof(T) / 4> dwords;
  copy_pieces_in<0, kCount * sizeof(T) / 4>(static_cast<const uint32_t*>(p), dwords);
  return dwords.template bit_cast_view<T>().read();
}
template <class T, int kCount>
ESIMD_INLINE void store(void* p, simd<T, kCount> v) {
  simd<uint32_t, kCount * sizeof(T) / 4> dwords = v.template bit_cast_view<uint32_t>().read();
  copy_pieces_out<0, kCount * sizeof(T) / 4>(static_cast<uint32_t*>(p), dwords);
}
