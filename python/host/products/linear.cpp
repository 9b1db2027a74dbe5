#include "host/products/linear.hpp"

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "host/arrays/access.hpp"
#include "host/arrays/checks.hpp"
#include "host/arrays/place.hpp"
#include "host/arrays/read_value.hpp"
#include "host/arrays/rows.hpp"
#include "host/device/sizes.hpp"
#include "host/products/desc.hpp"
#include "products/params.hpp"

namespace xeflash {
namespace {

struct LinearRequest {
  std::string function = "linear";
  py::object x = py::none(), weight = py::none(), bias = py::none();
  py::object scales = py::none(), zeros = py::none();
  int64_t group = 0;  // 0: all inputs
  bool wide = false;  // the result is in fp32
};

XF_FIELDS(LinearRequest, function, x, weight, bias, scales, zeros, group, wide);

constexpr int64_t kUnitInputs = 128, kUnitBytes = 64;  // of packed weights, see weights.hpp
constexpr int64_t kGroups[] = {32, 64, 128};           // inputs that may share a scale
constexpr int64_t kMost = int64_t{1} << 31;

// Numbers of a group of inputs and an output: one for all, one per output, or one for each of both.
struct PerGroup {
  Array array;
  int64_t group = 0, output = 0;  // strides
};
PerGroup read_per_group(const py::object& object, const char* name, int64_t groups, int64_t outputs,
                        const Array& x, const Checker& check) {
  PerGroup all{with_whole_strides(read_array(object, check, name), check, name)};
  const Array& a = all.array;
  check.require_same_place(a, name, x, "x");
  const bool fits = (a.ndim == 2 && a.shape[0] == groups && a.shape[1] == outputs) ||
                    (a.ndim == 1 && groups == 1 && a.shape[0] == outputs) ||
                    (groups == 1 && a.ndim <= 1 && (a.ndim == 0 || a.shape[0] == 1));
  XF_REQUIRE(check, fits, name,
             "must have the shape [" + std::to_string(groups) + ", " + std::to_string(outputs) +
                 "] of groups of inputs and outputs",
             a.describe_shape(), a);
  if (a.ndim == 2) all.group = a.shape[0] > 1 ? a.strides[0] : 0;
  if (a.ndim > 0) all.output = a.shape[a.ndim - 1] > 1 ? a.strides[a.ndim - 1] : 0;
  return all;
}

// 2^n that is as much at least.
uint8_t width_of(int64_t outputs) {
  return static_cast<uint8_t>(
      std::bit_width(static_cast<uint64_t>(std::max<int64_t>(outputs, 1) - 1)));
}

}  // namespace

py::tuple linear_fields() {
  py::list all;
  list_fields(all, LinearRequest{}, kFieldsOf<LinearRequest>);
  return py::tuple(all);
}

py::object linear(const py::kwargs& arguments) {
  const auto r = read_request<LinearRequest>(arguments);
  const Checker check(r.function);
  Array x = with_contiguous_rows(read_array(r.x, check, "x"), check, "x");
  XF_REQUIRE_DTYPE(check, is_float(x.dtype), x, "x", "must be float32, float16 or bfloat16");
  XF_REQUIRE(check, x.ndim >= 1, "x", "must have at least 1 dimension", std::to_string(x.ndim), x);
  if (!has_even_rows(x)) x = packed_copy(x, check, "x");
  const Array w = read_array(r.weight, check, "weight");
  XF_REQUIRE(check, w.ndim == 2, "weight", "must have 2 dimensions", std::to_string(w.ndim), w);
  check.require_same_place(w, "weight", x, "x");
  const int64_t inputs = x.shape[x.ndim - 1], outputs = w.shape[0];
  const bool packed = w.dtype == DType::kU8, plain = w.dtype == x.dtype;
  const bool of_8_bits =
      w.dtype == DType::kE4M3 || w.dtype == DType::kE5M2 || w.dtype == DType::kI8;
  XF_REQUIRE_DTYPE(check, plain || packed || of_8_bits, w, "weight",
                   std::string("must have the dtype of x (") + name_of(x.dtype) +
                       "), or be float8_e4m3fn, float8_e5m2, int8, or uint8 from pack_int4");
  const int64_t columns = packed ? divide_up(inputs, kUnitInputs) * kUnitBytes : inputs;
  XF_REQUIRE(check, w.shape[1] == columns, "weight",
             (packed ? "must have rows of " + std::to_string(columns) +
                           " bytes, as pack_int4 makes them for"
                     : std::string("must have")) +
                 " the " + std::to_string(inputs) + " inputs of x",
             std::to_string(w.shape[1]), w);
  XF_REQUIRE(check, w.has_contiguous_rows(), "weight", "must have a last dimension of stride 1",
             w.describe_strides(), w);
  XF_REQUIRE(check, w.shape[0] <= 1 || w.strides[0] >= columns, "weight",
             "must have rows that lie apart", w.describe_strides(), w);
  XF_REQUIRE(check, inputs < kMost && outputs < kMost, "weight", "must have extents below 2^31",
             w.describe_shape(), w);
  if (plain) {
    if (!r.scales.is_none() || !r.zeros.is_none() || r.group != 0)
      check.refuse(std::string(!r.scales.is_none()  ? "scales"
                               : !r.zeros.is_none() ? "zeros"
                                                    : "group") +
                   " must not be given with a weight of " + name_of(w.dtype) +
                   ", which stands for itself, got one");
  } else if (r.scales.is_none()) {
    check.refuse("scales must be given with a weight of " + std::string(name_of(w.dtype)) +
                 ", got None");
  }
  const bool whole = r.group == 0 || r.group == inputs;
  if (!whole && std::ranges::find(kGroups, r.group) == std::end(kGroups))
    check.refuse("group must be 32, 64, 128, or None for all inputs, got " +
                 std::to_string(r.group));
  const int64_t group = whole ? std::max<int64_t>(inputs, 1) : r.group;
  const int64_t groups = std::max<int64_t>(divide_up(inputs, group), 1);
  PerGroup scales, zeros;
  if (!plain) {
    scales = read_per_group(r.scales, "scales", groups, outputs, x, check);
    XF_REQUIRE_DTYPE(check, is_float(scales.array.dtype), scales.array, "scales",
                     "must be float32, float16 or bfloat16");
  }
  if (!r.zeros.is_none()) {
    zeros = read_per_group(r.zeros, "zeros", groups, outputs, x, check);
    XF_REQUIRE_DTYPE(check, zeros.array.dtype == DType::kI8, zeros.array, "zeros", "must be int8");
  }
  Array bias;
  if (!r.bias.is_none()) {
    bias = with_contiguous_rows(read_array(r.bias, check, "bias"), check, "bias");
    check.require_same_place(bias, "bias", x, "x");
    XF_REQUIRE(check, bias.ndim == 1 && bias.shape[0] == outputs, "bias",
               "must have the shape [" + std::to_string(outputs) + "]", bias.describe_shape(),
               bias);
    XF_REQUIRE_DTYPE(check, bias.dtype == x.dtype, bias, "bias",
                     std::string("must have the dtype of x (") + name_of(x.dtype) + ")");
  }
  const Place place = place_of(x);
  refuse_to_wait_while_recording(place, x, "x", check);
  const bool on_gpu = place.device.facts.arch.rfind("cpu-", 0) != 0;
  if (on_gpu) {  // and reaches rows by 32 bits
    XF_REQUIRE(check, w.shape[0] <= 1 || w.strides[0] * size_of(w.dtype) < kFar, "weight",
               "must have rows less than 2^27 bytes apart on a GPU", w.describe_strides(), w);
    XF_REQUIRE(check, outputs * size_of(r.wide ? DType::kF32 : x.dtype) < kFar, "weight",
               "must have fewer outputs than 2^27 bytes hold on a GPU", std::to_string(outputs), w);
    if (!are_near(as_rows(x).strides[0], x)) x = packed_copy(x, check, "x");
  }
  const Array rows = as_rows(x);
  XF_REQUIRE(check, rows.shape[0] < kMost, "x", "must have fewer than 2^31 rows",
             std::to_string(rows.shape[0]), x);
  std::vector<int64_t> shape(x.shape.begin(), x.shape.begin() + x.ndim);
  shape.back() = outputs;
  const Array out = new_array(x, r.wide ? DType::kF32 : x.dtype, shape);
  if (rows.shape[0] * outputs == 0) return out.object;

  ProductDesc desc;
  desc.algorithm = Algorithm::linear;
  desc.dtype = x.dtype;
  const ProductSchedule& sizes = product_schedule_of(place.device);
  desc.rows = static_cast<uint8_t>(std::min<int64_t>(rows.shape[0], sizes.most_rows));
  const int64_t of_tables = sizes.cores_of_tables;
  const int64_t cores = std::max<int64_t>(of_tables, place.device.facts.compute_units);
  desc.width = width_of(of_tables ? divide_up(of_tables * outputs, cores) : outputs);
  desc.weight = plain ? DType::kOther : w.dtype;
  desc.scale = scales.array.data ? scales.array.dtype : DType::kOther;
  desc.group = static_cast<uint8_t>(whole ? 0 : r.group);
  desc.wide = r.wide && x.dtype != DType::kF32;
  desc.access = access_of_matrices({&rows, &w}, place.device.facts.arch);
  const Kernels& kernels = find_kernels(desc, place);

  LinearParams params{};
  params.x = rows.data;
  params.weight = w.data;
  params.bias = bias.data;
  params.out = out.data;
  params.x_row = rows.strides[0];
  params.weight_row = w.shape[0] > 1 ? w.strides[0] : columns;
  params.out_row = outputs;
  params.scales = scales.array.data;
  params.scale_group = scales.group;
  params.scale_output = scales.output;
  params.zeros = reinterpret_cast<const int8_t*>(zeros.array.data);
  params.zero_group = zeros.group;
  params.zero_output = zeros.output;
  params.rows = static_cast<int32_t>(rows.shape[0]);
  params.outputs = static_cast<int32_t>(outputs);
  params.inputs = static_cast<int32_t>(inputs);
  params.group = static_cast<int32_t>(group);
  const auto groups_of_threads = static_cast<uint64_t>(divide_up(rows.shape[0], kernels.block_q) *
                                                       divide_up(outputs, kernels.block_v));
  check_groups(groups_of_threads, desc.access);
  submit(place, [&](Launcher& launch) {
    launch(*kernels.entries[0], params, groups_of_threads, kernels.threads);
  });
  return out.object;
}

}  // namespace xeflash
