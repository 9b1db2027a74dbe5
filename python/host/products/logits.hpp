// What all calls of a language model's head read and launch alike.
#pragma once

#include <initializer_list>
#include <vector>

#include "host/arrays/place.hpp"
#include "host/products/desc.hpp"
#include "products/logit_params.hpp"

namespace xeflash {

// Arguments that change logits.
struct LogitArguments {
  py::object input, weight, bias;
  double softcap, scale;
};

// The head of a call, on a device that multiplies it as it lies here.
struct Head {
  Place place;
  Array input, weight, bias;        // (rows, inputs), (columns, inputs), (columns)
  std::vector<int64_t> shape;       // of a value per row
  int64_t rows, columns, features;  // features: of the caller
  int64_t inputs;                   // as kernels take them: GPUs take whole messages
  Access access;
  float scale, softcap;

  bool on_gpu() const { return place.device.facts.on_gpu(); }
  const ProductSchedule& sizes() const { return product_schedule_of(place.device); }
  // Of a kernel of this algorithm for so many rows, with a multiple of the steps that it takes.
  SoftmaxDesc describe(Algorithm algorithm, int64_t rows, int64_t steps) const;
  // All but what a launch shares out.
  void fill(LogitParams& p) const;
  // The widest access that these allow, too; those that are null are passed over.
  Access access_with(std::initializer_list<const Array*> matrices) const;
};
Head read_head(const LogitArguments& arguments, const Checker& check);

// Shares out blocks of rows and parts of the columns, of so many columns each.
void share_out(LogitParams& p, const Kernels& kernels, int64_t part, const Head& head);

// Bytes that workers keep inputs of their rows in; 0 on GPUs.
int64_t kept_bytes(const LogitParams& p, const Kernels& kernels, const Head& head);

}  // namespace xeflash
