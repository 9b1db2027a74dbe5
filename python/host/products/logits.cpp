#include "host/products/logits.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "host/arrays/access.hpp"
#include "host/arrays/rows.hpp"

namespace xeflash {
namespace {

constexpr int64_t kMostOfHead = (int64_t{1} << 31) - 1024;  // with the rest of a block, 32 bits

void require_finite(double x, const char* name, const Checker& check, bool holds,
                    const std::string& rule) {
  if (holds && std::abs(x) <= 3.4028234663852886e38) return;
  check.refuse(
      name, "must be " + rule + " in float32, got " + py::str(py::float_(x)).cast<std::string>());
}

}  // namespace

Head read_head(const LogitArguments& given, const Checker& check) {
  require_finite(given.softcap, "softcap", check, given.softcap >= 0, "0 or positive, and finite,");
  require_finite(given.scale, "logit_scale", check, true, "finite");
  Array x = with_contiguous_rows(read_array(given.input, check, "input"), check, "input");
  XF_REQUIRE_DTYPE(check, is_float(x.dtype), x, "input", "must be float32, float16 or bfloat16");
  XF_REQUIRE(check, x.ndim >= 1, "input", "must have at least 1 dimension", "0", x);
  Array w = with_contiguous_rows(read_array(given.weight, check, "linear_weight"), check,
                                 "linear_weight");
  XF_REQUIRE_DTYPE(check, w.dtype == x.dtype, w, "linear_weight",
                   std::string("must have the dtype of input (") + name_of(x.dtype) + ")");
  XF_REQUIRE(check, w.ndim == 2, "linear_weight", "must have 2 dimensions", std::to_string(w.ndim),
             w);
  check.require_same_place(w, "linear_weight", x, "input");
  const int64_t inputs = x.shape[x.ndim - 1], columns = w.shape[0];
  XF_REQUIRE(check, w.shape[1] == inputs, "linear_weight",
             "must have the " + std::to_string(inputs) + " features of input in its last dimension",
             std::to_string(w.shape[1]), w);
  XF_REQUIRE(check, inputs > 0, "input", "must have features", "0", x);
  XF_REQUIRE(check, columns > 0, "linear_weight", "must have rows, as a softmax is of one at least",
             "0", w);
  Array bias;
  if (!given.bias.is_none()) {
    bias = with_contiguous_rows(read_array(given.bias, check, "linear_bias"), check, "linear_bias");
    XF_REQUIRE_DTYPE(check, bias.dtype == x.dtype, bias, "linear_bias",
                     std::string("must have the dtype of input (") + name_of(x.dtype) + ")");
    XF_REQUIRE(check, bias.ndim == 1 && bias.shape[0] == columns, "linear_bias",
               "must have the shape [" + std::to_string(columns) + "]", bias.describe_shape(),
               bias);
    check.require_same_place(bias, "linear_bias", x, "input");
  }
  std::vector<int64_t> shape(x.shape.begin(), x.shape.begin() + x.ndim - 1);
  const Place place = place_of(x);
  refuse_to_wait_while_recording(place, x, "input", check);
  Head head{{},
            {},
            {},
            0,
            columns,
            inputs,
            inputs,
            std::move(shape),
            place,
            false,
            Access::kNone,
            static_cast<float>(given.scale),
            normal_cap(given.softcap)};
  head.on_gpu = place.device.facts.arch.rfind("cpu-", 0) != 0;
  if (!has_even_rows(x)) x = packed_copy(x, check, "input");
  x = as_rows(x);
  if (w.shape[0] > 1 && w.strides[0] < 0) w = packed_copy(w, check, "linear_weight");
  if (head.on_gpu) {
    head.inputs = whole(inputs, kMessageInputs);
    x = with_inputs(std::move(x), head.inputs, "input", check);
    w = with_inputs(std::move(w), head.inputs, "linear_weight", check);
    head.access = access_of_matrices({&x, &w}, place.device.facts.arch);
  }
  head.rows = x.shape[0];
  XF_REQUIRE(check, head.rows < kMostOfHead && inputs < kMostOfHead && columns < kMostOfHead,
             "input", "and linear_weight must have extents below 2^31 - 1024", w.describe_shape(),
             x);
  head.input = std::move(x);
  head.weight = std::move(w);
  head.bias = std::move(bias);
  return head;
}

SoftmaxDesc Head::describe(Algorithm algorithm, int64_t rows, int64_t steps) const {
  SoftmaxDesc desc;
  desc.algorithm = algorithm;
  desc.dtype = input.dtype;
  desc.rows = static_cast<uint8_t>(
      std::min(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(rows, 1))),
               static_cast<uint64_t>(sizes().most_rows)));
  desc.more_inputs = true;
  int64_t step = sizes().step_inputs;
  if (on_gpu) {
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
    if (x && on_gpu) {
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
      head.on_gpu ? p.groups : std::min<int32_t>(p.groups, head.place.device.facts.compute_units);
}

int64_t kept_bytes(const LogitParams& p, const Kernels& kernels, const Head& head) {
  if (head.on_gpu) return 0;
  return int64_t{p.workers} * kernels.block_q * whole(p.inputs, kernels.block_k) * 4;
}

}  // namespace xeflash
