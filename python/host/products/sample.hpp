// Draws tokens from logits.
#pragma once

#include <string>

#include "host/arrays/checks.hpp"
#include "host/device/fields.hpp"

namespace xeflash {

// The arguments of a call: SampleArguments in call/schema.py has the same.
struct SampleRequest {
  std::string function = "sample";
  py::object logits = py::none();
  int64_t seed = 0, position = 0;
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0, min_p = 0.0;
  // These arrays have a number for each row; they replace the numbers above.
  py::object seeds = py::none(), positions = py::none(), temperatures = py::none();
  py::object top_ks = py::none(), top_ps = py::none(), min_ps = py::none();
  double softcap = 0.0, logit_scale = 1.0;
  bool min_p_last = false;
  int64_t first_row = 0;
};

XF_FIELDS(SampleRequest, function, logits, seed, position, temperature, top_k, top_p, min_p, seeds,
          positions, temperatures, top_ks, top_ps, min_ps, softcap, logit_scale, min_p_last,
          first_row);

// Returns a token of each row.
py::object sample(const SampleRequest& request, const Checker& check);

}  // namespace xeflash
