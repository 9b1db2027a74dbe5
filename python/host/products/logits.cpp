#include "host/products/logits.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "host/products/rows.hpp"

namespace xeflash {
namespace {

Array read_input(const LogitArguments& given, const Checker& check) {
  Array x = read_rows(given.input, check, "input");
  check.require_float(x, "input");
  check.require_least_dims(x, "input", 1);
  return x;
}

Array read_weight(const LogitArguments& given, const Array& x, const Checker& check) {
  Array w = read_rows(given.weight, check, "linear_weight");
  check.require_dtype_of(w, "linear_weight", x, "input");
  check.require_dims(w, "linear_weight", 2);
  check.require_same_place(w, "linear_weight", x, "input");
  const int64_t inputs = x.shape[x.ndim - 1];
  XF_REQUIRE(check, w.shape[1] == inputs, "linear_weight",
             "must have the " + std::to_string(inputs) + " features of input in its last dimension",
             std::to_string(w.shape[1]), w);
  XF_REQUIRE(check, inputs > 0, "input", "must have features", "0", x);
  XF_REQUIRE(check, w.shape[0] > 0, "linear_weight",
             "must have rows, as a softmax is of one at least", "0", w);
  return w;
}

}  // namespace

Head read_head(const LogitArguments& given, const Checker& check) {
  check.require(given.softcap >= 0 && fits_float(given.softcap), "softcap",
                "0 or positive, and finite, in float32", given.softcap);
  check.require(fits_float(given.scale), "logit_scale", "finite in float32", given.scale);
  Array x = read_input(given, check);
  Array w = read_weight(given, x, check);
  const int64_t features = w.shape[1], columns = w.shape[0];
  Array bias = read_bias(given.bias, "linear_bias", columns, x, "input", check);
  std::vector<int64_t> shape(x.shape.begin(), x.shape.begin() + x.ndim - 1);
  const Place place = place_of(x);
  refuse_to_wait_while_recording(place, x, "input", check);
  if (!has_even_rows(x)) x = packed_copy(x, check, "input");
  x = as_rows(std::move(x));
  if (columns > 1 && w.strides[0] < 0) w = packed_copy(w, check, "linear_weight");
  const bool on_cpu = !place.device.facts.on_gpu();
  const int64_t rows = x.shape[0], inputs = on_cpu ? features : whole(features, kMessageInputs);
  if (!on_cpu) {
    x = with_inputs(std::move(x), inputs, "input", check);
    w = with_inputs(std::move(w), inputs, "linear_weight", check);
  }
  XF_REQUIRE(check, rows < kMostExtent && features < kMostExtent && columns < kMostExtent, "input",
             "and linear_weight must have extents below 2^31 - 1024", w.describe_shape(), x);
  const Access access =
      on_cpu ? Access::kNone : access_of_matrices({&x, &w}, place.device.facts.arch);
  return {place,
          std::move(x),
          std::move(w),
          std::move(bias),
          std::move(shape),
          rows,
          columns,
          features,
          inputs,
          access,
          static_cast<float>(given.scale),
          normal_cap(given.softcap)};
}

SoftmaxDesc Head::describe(Algorithm algorithm, int64_t rows, int64_t steps) const {
  SoftmaxDesc desc;
  desc.algorithm = algorithm;
  desc.dtype = input.dtype;
  desc.rows = rows_for(rows, sizes());
  desc.more_inputs = true;
  int64_t step = sizes().step_inputs;
  if (on_gpu()) {
    while (steps % step) step /= 2;
  } else if (steps <= sizes().few_inputs) {
    step = sizes().few_inputs;
  }
  desc.inputs = static_cast<uint16_t>(step);
  desc.access = access;
  return desc;
}

Access Head::access_with(std::initializer_list<const Array*> matrices) const {
  Access widest = access;
  for (const Array* x : matrices) {
    if (x && on_gpu()) {
      Array rows = as_rows(*x);
      rows.strides[0] = rows.shape[1];
      widest = std::max(widest, access_of_matrices({&rows}, place.device.facts.arch));
    }
  }
  return widest;
}

void Head::fill(LogitParams& p) const {
  p.x = input.data;
  p.weight = weight.data;
  p.bias = bias.data;
  p.x_row = input.shape[0] > 1 ? input.strides[0] : inputs;
  p.weight_row = weight.shape[0] > 1 ? weight.strides[0] : inputs;
  p.rows = static_cast<int32_t>(rows);
  p.columns = static_cast<int32_t>(columns);
  p.inputs = static_cast<int32_t>(inputs);
  p.scale = scale;
  p.softcap = softcap;
  p.inverse_cap = softcap > 0 ? 1.f / softcap : 0.f;
}

void share_out(LogitParams& p, const Kernels& kernels, int64_t part, const Head& head) {
  const int64_t blocks = divide_up(p.rows, int64_t{kernels.block_q} * kernels.threads);
  p.part = static_cast<int32_t>(whole(std::min<int64_t>(part, p.columns), kernels.block_v));
  p.parts = static_cast<int32_t>(divide_up(p.columns, p.part));
  p.groups = static_cast<int32_t>(blocks * p.parts);
  p.workers =
      head.on_gpu() ? p.groups : std::min<int32_t>(p.groups, head.place.device.facts.compute_units);
}

int64_t kept_bytes(const LogitParams& p, const Kernels& kernels, const Head& head) {
  if (head.on_gpu()) return 0;
  return int64_t{p.workers} * kernels.block_q * whole(p.inputs, kernels.block_k) * 4;
}

}  // namespace xeflash
