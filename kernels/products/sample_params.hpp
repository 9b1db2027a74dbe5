// The parameters that a launch passes to the kernel that draws tokens.
#pragma once

#include <cstdint>

namespace xeflash {

// A number for each row; without data the same for all.
template <class T>
struct PerRow {
  const T* data;
  T value;
};

struct SampleParams {
  const void* logits;  // (rows, columns)
  int64_t logits_row;  // stride
  uint32_t* tokens;    // of 64 bits
  PerRow<float> temperature, top_p, min_p;
  PerRow<int32_t> top_k;
  PerRow<int64_t> seed, position;
  float scale, softcap, inverse_cap;  // of logits; no softcap: 0
  int32_t rows, columns;
  int32_t first_row;   // the index of the first one, where one seed is for all
  int32_t min_p_last;  // whether it follows top_p
};

}  // namespace xeflash
