// Reads the arguments that all calls of a language model's head have, and prepares their launches.
#pragma once

#include <initializer_list>
#include <vector>

#include "host/arrays/place.hpp"
#include "host/products/desc.hpp"
#include "products/logit_params.hpp"

namespace xeflash {

// The arguments that change logits.
struct LogitArguments {
  py::object input, weight, bias;
  double softcap, scale;
};

// The head of a call, copied where the device cannot multiply it in place.
struct Head {
  Place place;
  Array input, weight, bias;        // (rows, inputs), (columns, inputs), (columns)
  std::vector<int64_t> shape;       // of a value per row
  int64_t rows, columns, features;  // features: of the caller
  int64_t inputs;                   // that kernels read: GPUs read whole messages
  Access access;
  float scale, softcap;

  bool on_gpu() const { return place.device.facts.on_gpu(); }
  const ProductSchedule& sizes() const { return product_schedule_of(place.device); }
  // Returns the description of a kernel of this algorithm for this many rows and inputs.
  SoftmaxDesc describe(Algorithm algorithm, int64_t rows, int64_t steps) const;
  // Sets the parameters of a launch, but for those that divide it.
  void fill(LogitParams& p) const;
  // Returns the widest access that the head's and these arrays allow. Null arrays are passed over.
  Access access_with(std::initializer_list<const Array*> matrices) const;
};
Head read_head(const LogitArguments& arguments, const Checker& check);

// Divides a launch into blocks of rows and parts of this many columns.
void share_out(LogitParams& p, const Kernels& kernels, int64_t part, const Head& head);

// Returns the bytes in which workers keep the inputs of their rows; 0 on GPUs.
int64_t kept_bytes(const LogitParams& p, const Kernels& kernels, const Head& head);

}  // namespace xeflash
