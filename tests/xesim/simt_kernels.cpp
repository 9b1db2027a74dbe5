// SIMT kernels, compiled at run time for the CPU device and for simulated GPUs. All take the same
// random words and leave words behind; what is float in them is told by test_simt.py.
#include <sycl/sycl.hpp>
namespace syclexp = sycl::ext::oneapi::experimental;
namespace item = sycl::ext::oneapi::this_work_item;
using u32 = uint32_t;
using i64 = int64_t;
using u64 = uint64_t;

#define KERNEL(dims) \
  extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclexp::nd_range_kernel<dims>)) void
#define SUB_GROUP_KERNEL(n)                                                   \
  extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclexp::nd_range_kernel<1>)) \
      SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclexp::sub_group_size<n>)) void

static inline float as_float(u32 x) { return sycl::bit_cast<float>(x); }
static inline u32 as_word(float x) { return sycl::bit_cast<u32>(x); }
// A float of moderate size from random bits: 2^-8 .. 2^8, both signs.
static inline float moderate(u32 x) {
  return as_float((x & 0x807fffffu) | (119u + (x >> 23 & 15u)) << 23);
}
static inline u32 id() { return static_cast<u32>(item::get_nd_item<1>().get_global_linear_id()); }

// ---- control flow

KERNEL(1) divergent_loops(const u32* in, u32* out, int n) {
  const u32 i = id();
  u32 x = in[i] % 1000 + 1, steps = 0, sum = 0;
  while (x != 1) {
    x = x % 2 == 0 ? x / 2 : 3 * x + 1;
    ++steps;
    if (steps % 7 == 3) continue;
    sum += x;
    for (u32 k = 0; k < x % 5; ++k) {
      if (k == i % 4) break;
      sum ^= k * steps;
    }
    if (steps > 100 + i % 16) break;
  }
  out[i] = sum + steps * 65536;
}

KERNEL(1) switches(const u32* in, u32* out, int n) {
  const u32 i = id();
  u32 r = in[i];
  for (int k = 0; k < 12; ++k) {
    switch (r % 9) {
      case 0:
        r += 7;
        break;
      case 1:
        r = r * 3 + 1;
        [[fallthrough]];
      case 2:
        r ^= 0x55aa;
        break;
      case 3:
        if (r & 16) return;
      case 5:
        r = (r >> 3) | (r << 29);
        break;
      case 6: {
        u32 t = r;
        for (u32 j = 0; j < (t & 7); ++j) r += j * t;
        break;
      }
      default:
        r -= 11;
    }
    out[i] = r;
  }
}

__attribute__((noinline)) static u32 hash(u32 x, u32 rounds) {
  for (u32 k = 0; k < rounds; ++k) x = (x ^ (x >> 15)) * 0x2c1b3c6du + k;
  return x;
}
__attribute__((noinline)) static u32 twice(u32 x, u32 rounds) {
  return hash(hash(x, rounds), rounds & 3) + 1;
}

KERNEL(1) calls(const u32* in, u32* out, int n) {
  const u32 i = id();
  u32 r = hash(in[i], 3);
  if (r & 1) r = twice(r, in[i] % 5);
  if (r & 2) r += hash(r, i % 3);
  out[i] = r;
}

// ---- integers

KERNEL(1) divisions(const u32* in, u32* out, int n) {
  const u32 i = id(), a = in[i], b = in[(i * 7 + 1) % n] >> (in[i] & 31) | 1u;
  const int c = static_cast<int>(a), d = static_cast<int>(b | 2u);
  out[4 * i] = a / b;
  out[4 * i + 1] = a % b;
  out[4 * i + 2] = static_cast<u32>(c / d);
  out[4 * i + 3] = static_cast<u32>(c % d);
}

KERNEL(1) wide_integers(const u32* in, u32* out, int n) {
  const u32 i = id();
  const u64 a = static_cast<u64>(in[i]) << 32 | in[(i + 1) % n],
            b = static_cast<u64>(in[(i + 5) % n]) << (i & 31) | 3u;
  const i64 c = static_cast<i64>(a), d = static_cast<i64>(b) | 1;
  const u64 r[8] = {
      a * b,
      a / b,
      static_cast<u64>(c / d),
      static_cast<u64>(c % d),
      sycl::mul_hi(a, b),
      a << (i % 64) | b >> (i % 61),
      static_cast<u64>(c >> (i % 64)),
      static_cast<u64>(sycl::popcount(a) + sycl::clz(b)) + static_cast<u64>(c < d) + (a - b)};
  for (int k = 0; k < 8; ++k) {
    out[16 * i + 2 * k] = static_cast<u32>(r[k]);
    out[16 * i + 2 * k + 1] = static_cast<u32>(r[k] >> 32);
  }
}

KERNEL(1) bits_and_bytes(const u32* in, u32* out, int n) {
  const u32 i = id(), a = in[i], b = in[(i + 3) % n];
  const auto s8 = static_cast<int8_t>(a), t8 = static_cast<int8_t>(b);
  const auto s16 = static_cast<int16_t>(a), t16 = static_cast<int16_t>(b >> 8);
  u32 r = sycl::popcount(a) + 64 * sycl::clz(b) + 4096 * sycl::ctz(a | 0x80000000u);
  r ^= sycl::rotate(a, b & 31) + sycl::mul_hi(a, b) + sycl::abs_diff(a, b) + sycl::hadd(a, b);
  out[4 * i] = r;
  out[4 * i + 1] =
      static_cast<u32>(sycl::add_sat(s8, t8)) ^ static_cast<u32>(sycl::sub_sat(s16, t16)) << 8;
  out[4 * i + 2] =
      static_cast<u32>(static_cast<int>(s8) * t16 + (s16 >> (b & 7)) + static_cast<uint8_t>(a + b));
  out[4 * i + 3] = sycl::add_sat(a, b) -
                   static_cast<u32>(sycl::sub_sat(static_cast<int>(a), static_cast<int>(b)));
}

// ---- private memory

KERNEL(1) private_arrays(const u32* in, u32* out, int n) {
  const u32 i = id();
  u32 a[200];
  for (u32 k = 0; k < 200; ++k) a[k] = in[(i + k) % n] + k;
  u32 at = i % 200, sum = 0;
  for (int k = 0; k < 300; ++k) {
    at = (a[at] + k) % 200;
    sum = sum * 31 + a[at];
    a[(at * 3 + i) % 200] ^= sum;
  }
  out[i] = sum;
}

KERNEL(1) many_live_values(const u32* in, u32* out, int n) {
  const u32 i = id();
  u32 a[96];
#pragma unroll
  for (int k = 0; k < 96; ++k) a[k] = in[(i * 5 + k * 17) % n] | 1;
  for (int round = 0; round < 3; ++round) {
#pragma unroll
    for (int k = 0; k < 96; ++k) a[k] = a[k] * a[(k * 37 + 11) % 96] + a[(k + 48) % 96];
  }
  u32 sum = 0;
#pragma unroll
  for (int k = 0; k < 96; ++k) sum = sum * 3 + a[k];
  out[i] = sum;
}

// ---- groups

KERNEL(1) local_memory(const u32* in, u32* out, int n, sycl::local_accessor<u32, 1> local) {
  const auto it = item::get_nd_item<1>();
  const u32 i = id(), l = it.get_local_id(0), size = it.get_local_range(0);
  local[l] = in[i];
  sycl::group_barrier(it.get_group());
  u32 mine = local[size - 1 - l] + local[(l * 5 + 1) % size];
  for (u32 step = 1; step < size; step *= 2) {
    sycl::group_barrier(it.get_group());
    local[l] = mine;
    sycl::group_barrier(it.get_group());
    mine += local[(l + step) % size];
  }
  out[i] = mine;
}

KERNEL(1) atomics(const u32* in, u32* out, int n, sycl::local_accessor<u32, 1> local) {
  const auto it = item::get_nd_item<1>();
  const u32 i = id(), l = it.get_local_id(0), x = in[i];
  using sycl::access::address_space;
  using Global = sycl::atomic_ref<u32, sycl::memory_order::relaxed, sycl::memory_scope::device>;
  using Signed = sycl::atomic_ref<int, sycl::memory_order::relaxed, sycl::memory_scope::device>;
  using Float = sycl::atomic_ref<float, sycl::memory_order::relaxed, sycl::memory_scope::device>;
  Global(out[x % 8]).fetch_add(x);
  Global(out[8]).fetch_max(x);
  Global(out[9]).fetch_xor(x);
  Global(out[10]).fetch_or(1u << (x & 31));
  Signed(reinterpret_cast<int&>(out[11])).fetch_min(static_cast<int>(x));
  Global(out[12])++;
  Float(reinterpret_cast<float&>(out[13])).fetch_add(static_cast<float>(x & 7));
  u32 seen = 0;
  while (!Global(out[14]).compare_exchange_strong(seen, seen * 1 + 2)) {
  }
  if (l < 4) local[l] = 0;
  sycl::group_barrier(it.get_group());
  sycl::atomic_ref<u32, sycl::memory_order::relaxed, sycl::memory_scope::work_group,
                   address_space::local_space>(local[x & 3])
      .fetch_add(x >> 4);
  sycl::group_barrier(it.get_group());
  out[16 + i] = local[l & 3];
}

template <class Group>
static void votes(Group g, u32 i, const u32* in, u32* out) {
  const u32 x = in[i] % 50;
  out[i] = sycl::any_of_group(g, x == 0) + 2 * sycl::all_of_group(g, x != 0) +
           4 * sycl::none_of_group(g, x == 1);
}
template <class Group>
static void group_functions(Group g, u32 i, const u32* in, u32* out) {
  const u32 x = in[i];
  u32* r = out + 12 * i;
  r[0] = sycl::reduce_over_group(g, x, sycl::plus<u32>());
  r[1] = sycl::reduce_over_group(g, static_cast<int>(x), sycl::minimum<int>());
  r[2] = sycl::exclusive_scan_over_group(g, x, sycl::plus<u32>());
  r[3] = sycl::inclusive_scan_over_group(g, x, sycl::maximum<u32>());
  r[4] = sycl::group_broadcast(g, x, g.get_local_linear_range() / 2);
}

KERNEL(1) work_group_functions(const u32* in, u32* out, int n) {
  group_functions(item::get_nd_item<1>().get_group(), id(), in, out);
}

KERNEL(1) work_group_votes(const u32* in, u32* out, int n) {
  votes(item::get_nd_item<1>().get_group(), id(), in, out);
}

static void sub_group_functions(const u32* in, u32* out) {
  const u32 i = id();
  const auto sg = item::get_nd_item<1>().get_sub_group();
  group_functions(sg, i, in, out);
  votes(sg, i, in, out + (1 << 15));
  const u32 lane = sg.get_local_linear_id(), size = sg.get_local_linear_range();
  out[12 * i + 8] = sycl::select_from_group(sg, in[i], (lane * 7 + 3) % size);
  out[12 * i + 9] = sycl::permute_group_by_xor(sg, in[i], 5);
  const u32 left = sycl::shift_group_right(sg, in[i], 1);
  out[12 * i + 10] = lane == 0 ? 0 : left;
  out[12 * i + 11] = size * 1000 + lane;
}
SUB_GROUP_KERNEL(16) sub_groups_16(const u32* in, u32* out, int n) { sub_group_functions(in, out); }
SUB_GROUP_KERNEL(32) sub_groups_32(const u32* in, u32* out, int n) { sub_group_functions(in, out); }

// ---- ranges

template <int dims>
static void identify(const u32* in, u32* out) {
  const auto it = item::get_nd_item<dims>();
  u32 r = 17;
  for (int k = 0; k < dims; ++k) {
    for (const size_t x : {it.get_global_id(k), it.get_local_id(k), it.get_group(k),
                           it.get_global_range(k), it.get_local_range(k), it.get_group_range(k)}) {
      r = r * 31 + static_cast<u32>(x);
    }
  }
  const u32 i = static_cast<u32>(it.get_global_linear_id());
  out[2 * i] = r + in[i];
  out[2 * i + 1] = static_cast<u32>(it.get_local_linear_id() * 1000 + it.get_group_linear_id());
}
KERNEL(1) range_1d(const u32* in, u32* out, int n) { identify<1>(in, out); }
KERNEL(2) range_2d(const u32* in, u32* out, int n) { identify<2>(in, out); }
KERNEL(3) range_3d(const u32* in, u32* out, int n) { identify<3>(in, out); }

// ---- floats

KERNEL(1) float_arithmetic(const u32* in, u32* out, int n) {
  const u32 i = id();
  const float a = moderate(in[i]), b = moderate(in[(i + 1) % n]), c = moderate(in[(i + 2) % n]);
  out[8 * i] = as_word(sycl::fma(a, b, c));
  out[8 * i + 1] = as_word(a / b);
  out[8 * i + 2] = as_word(sycl::sqrt(sycl::fabs(a)));
  out[8 * i + 3] = as_word(sycl::floor(a) + sycl::rint(b) * sycl::trunc(c));
  out[8 * i + 4] = as_word(sycl::fmax(a, b) - sycl::fmin(b, c));
  out[8 * i + 5] = as_word(sycl::ldexp(a, static_cast<int>(in[i] & 15) - 8));
  out[8 * i + 6] = as_word(sycl::fmod(a, b));
  out[8 * i + 7] = as_word(a < b ? sycl::copysign(c, a) : a > c ? b : -b);
}

KERNEL(1) float_functions(const u32* in, u32* out, int n) {
  const u32 i = id();
  const float a = moderate(in[i]), b = sycl::fabs(moderate(in[(i + 1) % n]));
  out[8 * i] = as_word(sycl::exp(a * 0.25f));
  out[8 * i + 1] = as_word(sycl::log(b));
  out[8 * i + 2] = as_word(sycl::sin(a));
  out[8 * i + 3] = as_word(sycl::cos(a));
  out[8 * i + 4] = as_word(sycl::exp2(a * 0.125f));
  out[8 * i + 5] = as_word(sycl::rsqrt(b));
  out[8 * i + 6] = as_word(sycl::pow(b, a * 0.0625f));
  out[8 * i + 7] = as_word(sycl::tanh(a));
}

KERNEL(1) conversions(const u32* in, u32* out, int n) {
  const u32 i = id();
  const float a = moderate(in[i]) * 64.f;
  u32* r = out + 8 * i;
  r[0] = static_cast<u32>(static_cast<int>(a));
  r[1] = static_cast<u32>(sycl::fabs(a));
  r[2] = as_word(static_cast<float>(in[i])) ^ as_word(static_cast<float>(static_cast<int>(in[i])));
  r[3] = sycl::bit_cast<uint16_t>(static_cast<sycl::half>(a));
  r[4] = as_word(
      static_cast<float>(sycl::bit_cast<sycl::half>(static_cast<uint16_t>(in[i] & 0xfbff))));
  r[5] =
      sycl::bit_cast<uint16_t>(static_cast<sycl::half>(a) * sycl::half(0.5f) + sycl::half(1.25f));
  r[6] = static_cast<u32>(static_cast<int16_t>(a)) +
         static_cast<u32>(static_cast<uint8_t>(sycl::fmin(sycl::fabs(a), 255.f)));
  // Factors of 32 bits with a sign: that of a product beyond 63 bits would be the compiler's
  // choice.
  r[7] =
      as_word(static_cast<float>(i64{static_cast<int>(in[i])} * static_cast<int>(in[(i + 1) % n])));
}
