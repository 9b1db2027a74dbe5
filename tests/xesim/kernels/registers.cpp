// Registers by index, and more values than there are registers.
#include "esimd.hpp"

// A table in registers, read and written at indices that only the run knows.
XE_KERNEL table(const float* in, const uint32_t* index, float* out) {
  auto values = load<float, 64>(in);
  const auto at = load<uint32_t, 16>(index);
  const simd<uint16_t, 16> places = esimd::convert<uint16_t>(at);
  const simd<float, 16> picked = values.iselect<16>(places);
  store<float, 16>(out, picked);
  simd<float, 16> doubled = picked * 2.f;
  values.iupdate<16>(places, doubled, simd_mask<16>(1));
  values.select<8, 1>(uint16_t(at[0] & 31)) += 100.f;
  const uint16_t k = at[1];
  values[k] = values[at[2]] + 1000.f;
  store<float, 64>(out + 16, values);
}

// The same with 16-bit and 8-bit elements.
template <class T>
ESIMD_INLINE void pick(const T* in, const uint32_t* index, T* out) {
  auto values = load<T, 64>(in);
  const auto at = load<uint32_t, 16>(index);
  const simd<T, 16> picked = values.template iselect<16>(esimd::convert<uint16_t>(at));
  store<T, 16>(out, picked);
  values.template select<4, 2>(uint16_t(at[0] & 31)) += T(7);
  store<T, 64>(out + 16, values);
}
XE_KERNEL table_u16(const uint16_t* in, const uint32_t* index, uint16_t* out) {
  pick(in, index, out);
}
XE_KERNEL table_u8(const uint8_t* in, const uint32_t* index, uint8_t* out) { pick(in, index, out); }

// An array that only memory can index: the compiler puts it into private memory or registers.
XE_KERNEL array(const uint32_t* index, uint32_t* out, int n) {
  uint32_t values[64];
  for (int i = 0; i < 64; ++i) values[i] = 3 * i;
  for (int i = 0; i < n; ++i) values[index[i] & 63] += values[index[i + 1] & 63];
  for (int i = 0; i < 64; ++i) out[i] = values[i];
}

// Nine vectors of 256 floats and their products: 144 of the registers of pvc and bmg, 288 of dg2's.
constexpr int kVectors = 9, kSize = 256;
XE_KERNEL many(const float* in, float* out, int n) {
  simd<float, kSize> v[kVectors];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) v[k] = load<float, kSize>(in + k * kSize);
  for (int i = 0; i < n; ++i) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
      v[k] = v[k] * 0.5f + v[(k + 1) % kVectors] * v[(k + 7) % kVectors];
  }
#pragma unroll
  for (int k = 0; k < kVectors; ++k) store<float, kSize>(out + k * kSize, v[k]);
}
