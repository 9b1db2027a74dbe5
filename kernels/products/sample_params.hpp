// The parameters that a launch passes to sample_tokens.
#pragma once

#include <cstdint>

namespace xeflash {

// A number for each row. If it has no data, `value` holds for all rows.
template <class T>
struct PerRow {
  const T* data;
  T value;
};

struct SampleParams {
  const void* logits;  // (rows, columns)
  int64_t logits_row;  // stride
  uint32_t* tokens;    // the result, 64 bits per row
  PerRow<float> temperature, top_p, min_p;
  PerRow<int32_t> top_k;
  PerRow<int64_t> seed, position;
  float scale, softcap, inverse_cap;  // applied to logits; no softcap: 0
  int32_t rows, columns;
  int32_t first_row;   // index of the first row, which tells rows apart that share one seed
  int32_t min_p_last;  // whether min_p is applied after top_k and top_p
};

}  // namespace xeflash
