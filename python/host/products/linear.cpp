#include "host/products/linear.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "host/arrays/access.hpp"
#include "host/arrays/function.hpp"
#include "host/arrays/place.hpp"
#include "host/products/desc.hpp"
#include "host/products/rows.hpp"
#include "products/params.hpp"

namespace xeflash {
namespace {

constexpr int64_t kUnitInputs = 128, kUnitBytes = 64;  // of packed weights, see weights.hpp
constexpr int64_t kGroups[] = {32, 64, 128};           // inputs that may share a scale
constexpr int64_t kMost = int64_t{1} << 31;

// The weights as they lie in memory.
struct Weights {
  Array array;
  int64_t outputs = 0, columns = 0;
  bool plain = false;  // of the type of x; others need scales
};

// Reads numbers for groups of inputs and outputs: one for all, one per output, or one per group and
// output.
struct PerGroup {
  Array array;
  int64_t group = 0, output = 0;  // strides
};

struct Factors {
  PerGroup scales, zeros;
  int64_t group = 1;  // inputs that share them
  bool for_all = false;
};

Array read_x(const LinearRequest& r, const Checker& check) {
  Array x = read_rows(r.x, check, "x");
  check.require_float(x, "x");
  check.require_least_dims(x, "x", 1);
  if (!has_even_rows(x)) x = packed_copy(std::move(x), check, "x");
  return x;
}

Weights read_weights(const LinearRequest& r, const Array& x, const Checker& check) {
  Array w = read_array(r.weight, check, "weight");
  check.require_dims(w, "weight", 2);
  check.require_same_place(w, "weight", x, "x");
  const bool packed = w.dtype == DType::kU8, plain = w.dtype == x.dtype;
  const bool has_8_bits =
      w.dtype == DType::kE4M3 || w.dtype == DType::kE5M2 || w.dtype == DType::kI8;
  XF_REQUIRE_DTYPE(check, plain || packed || has_8_bits, w, "weight",
                   std::string("must have the dtype of x (") + name_of(x.dtype) +
                       "), or be float8_e4m3fn, float8_e5m2, int8, or uint8 from pack_int4");
  const int64_t inputs = x.shape[x.ndim - 1];
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
  XF_REQUIRE(check, inputs < kMost && w.shape[0] < kMost, "weight", "must have extents below 2^31",
             w.describe_shape(), w);
  const int64_t outputs = w.shape[0];
  return {std::move(w), outputs, columns, plain};
}

PerGroup read_per_group(const py::object& object, const char* name, int64_t groups, int64_t outputs,
                        const Array& x, const Checker& check) {
  PerGroup all{with_whole_strides(read_array(object, check, name), check, name)};
  const Array& a = all.array;
  check.require_same_place(a, name, x, "x");
  const bool fits = (a.ndim == 2 && a.shape[0] == groups && a.shape[1] == outputs) ||
                    (a.ndim == 1 && groups == 1 && a.shape[0] == outputs) ||
                    (groups == 1 && a.ndim <= 1 && (a.ndim == 0 || a.shape[0] == 1));
  XF_REQUIRE(check, fits, name,
             "must have the shape " + text_of_shape({groups, outputs}) +
                 " of groups of inputs and outputs",
             a.describe_shape(), a);
  if (a.ndim == 2) all.group = a.shape[0] > 1 ? a.strides[0] : 0;
  if (a.ndim > 0) all.output = a.shape[a.ndim - 1] > 1 ? a.strides[a.ndim - 1] : 0;
  return all;
}

// Checks that a call has the arguments that weights of this type need, and no others.
void check_factors(const LinearRequest& r, const Weights& weights, const Checker& check) {
  const char* dtype = name_of(weights.array.dtype);
  if (!weights.plain && r.scales.is_none())
    check.refuse("scales", std::string("must be given with a weight of ") + dtype + ", got None");
  const char* extra = !r.scales.is_none()  ? "scales"
                      : !r.zeros.is_none() ? "zeros"
                      : r.group != 0       ? "group"
                                           : nullptr;
  if (weights.plain && extra)
    check.refuse(extra, std::string("must not be given with a weight of ") + dtype +
                            ", which stands for itself, got one");
}

Factors read_factors(const LinearRequest& r, const Weights& weights, const Array& x,
                     const Checker& check) {
  check_factors(r, weights, check);
  const int64_t inputs = x.shape[x.ndim - 1];
  Factors f;
  f.for_all = r.group == 0 || r.group == inputs;
  if (!f.for_all && std::ranges::find(kGroups, r.group) == std::end(kGroups))
    check.refuse("group",
                 "must be 32, 64, 128, or None for all inputs, got " + std::to_string(r.group));
  f.group = f.for_all ? std::max<int64_t>(inputs, 1) : r.group;
  const int64_t groups = std::max<int64_t>(divide_up(inputs, f.group), 1);
  if (!weights.plain) {
    f.scales = read_per_group(r.scales, "scales", groups, weights.outputs, x, check);
    check.require_float(f.scales.array, "scales");
  }
  if (!r.zeros.is_none()) {
    f.zeros = read_per_group(r.zeros, "zeros", groups, weights.outputs, x, check);
    check.require_dtype(f.zeros.array, "zeros", DType::kI8);
  }
  return f;
}

// Refuses weights and results that a GPU does not reach by 32 bits, and copies such rows of x.
void bring_near(Array& x, const Weights& weights, DType result, const Checker& check) {
  const Array& w = weights.array;
  XF_REQUIRE(check, w.shape[0] <= 1 || w.strides[0] * size_of(w.dtype) < kFar, "weight",
             "must have rows less than 2^27 bytes apart on a GPU", w.describe_strides(), w);
  XF_REQUIRE(check, weights.outputs * size_of(result) < kFar, "weight",
             "must have fewer outputs than 2^27 bytes hold on a GPU",
             std::to_string(weights.outputs), w);
  if (!are_near(as_rows(x).strides[0], x)) x = packed_copy(x, check, "x");
}

// A call whose arguments were read and checked.
struct Product {
  Product(const LinearRequest& r, const Checker& check)
      : x(read_x(r, check)),
        weights(read_weights(r, x, check)),
        factors(read_factors(r, weights, x, check)),
        bias(read_bias(r.bias, "bias", weights.outputs, x, "x", check)),
        place(place_of(x)) {
    refuse_to_wait_while_recording(place, x, "x", check);
    const DType result = r.wide ? DType::kF32 : x.dtype;
    if (place.device.facts.on_gpu()) bring_near(x, weights, result, check);
    XF_REQUIRE(check, rows_of(x) < kMost, "x", "must have fewer than 2^31 rows",
               std::to_string(rows_of(x)), x);
    std::vector<int64_t> shape(x.shape.begin(), x.shape.begin() + x.ndim);
    shape.back() = weights.outputs;
    out = new_array(x, result, shape);
    x = as_rows(std::move(x));
  }

  Array x;  // its rows
  Weights weights;
  Factors factors;
  Array bias;
  Place place;
  Array out;
};

ProductDesc describe(const Product& p) {
  const DeviceFacts& facts = p.place.device.facts;
  const ProductSchedule& sizes = product_schedule_of(p.place.device);
  const int64_t table_cores = sizes.cores_of_tables, outputs = p.weights.outputs;
  const int64_t cores = std::max<int64_t>(table_cores, facts.compute_units);
  const Array& scales = p.factors.scales.array;
  ProductDesc desc;
  desc.dtype = p.x.dtype;
  desc.rows = static_cast<uint8_t>(std::min<int64_t>(p.x.shape[0], sizes.most_rows));
  desc.width = power_for(table_cores ? divide_up(table_cores * outputs, cores) : outputs);
  desc.weight = p.weights.plain ? DType::kOther : p.weights.array.dtype;
  desc.scale = scales.data ? scales.dtype : DType::kOther;
  desc.group = static_cast<uint8_t>(p.factors.for_all ? 0 : p.factors.group);
  desc.wide = p.out.dtype != p.x.dtype;
  desc.access = access_of_matrices({&p.x, &p.weights.array}, facts.arch);
  return desc;
}

LinearParams params_of(const Product& p) {
  const Array& w = p.weights.array;
  LinearParams params{};
  params.x = p.x.data;
  params.weight = w.data;
  params.bias = p.bias.data;
  params.out = p.out.data;
  params.x_row = p.x.strides[0];
  params.weight_row = w.shape[0] > 1 ? w.strides[0] : p.weights.columns;
  params.out_row = p.weights.outputs;
  params.scales = p.factors.scales.array.data;
  params.scale_group = p.factors.scales.group;
  params.scale_output = p.factors.scales.output;
  params.zeros = reinterpret_cast<const int8_t*>(p.factors.zeros.array.data);
  params.zero_group = p.factors.zeros.group;
  params.zero_output = p.factors.zeros.output;
  params.rows = static_cast<int32_t>(p.x.shape[0]);
  params.outputs = static_cast<int32_t>(p.weights.outputs);
  params.inputs = static_cast<int32_t>(p.x.shape[1]);
  params.group = static_cast<int32_t>(p.factors.group);
  return params;
}

}  // namespace

py::object linear(const LinearRequest& r, const Checker& check) {
  const Product p(r, check);
  if (p.out.is_empty()) return p.out.object;
  const ProductDesc desc = describe(p);
  const Kernels& kernels = find_kernels(desc, p.place);
  const LinearParams params = params_of(p);
  const auto groups = static_cast<uint64_t>(divide_up(params.rows, kernels.block_q) *
                                            divide_up(params.outputs, kernels.block_v));
  check_groups(groups, desc.access);
  submit(p.place,
         [&](Launcher& launch) { launch(*kernels.entries[0], params, groups, kernels.threads); });
  return p.out.object;
}

static const Offered<LinearRequest, linear> kLinear("linear");

}  // namespace xeflash
