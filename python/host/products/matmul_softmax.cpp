// Computes products of matrices whose rows become their softmax.
#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "host/arrays/access.hpp"
#include "host/arrays/function.hpp"
#include "host/arrays/overlap.hpp"
#include "host/arrays/place.hpp"
#include "host/device/sizes.hpp"
#include "host/products/desc.hpp"
#include "host/products/rows.hpp"
#include "products/softmax_params.hpp"

namespace xeflash {
namespace {

// The arguments of a call: MatmulSoftmaxArguments in call/schema.py has the same.
struct SoftmaxRequest {
  std::string function = "matmul_softmax";
  py::object a = py::none(), b = py::none(), bias = py::none();
  double scale = 1.0;
  std::string b_layout = "nk";
  bool log = false;
  py::object out = py::none();
};

XF_FIELDS(SoftmaxRequest, function, a, b, bias, scale, b_layout, log, out);

void swap_last(Array& x) {
  std::swap(x.shape[x.ndim - 1], x.shape[x.ndim - 2]);
  std::swap(x.strides[x.ndim - 1], x.strides[x.ndim - 2]);
}

// Returns B as (..., columns, inputs) with contiguous rows, copied if they are not.
Array read_b(const SoftmaxRequest& r, const Checker& check) {
  Array b = with_whole_strides(read_array(r.b, check, "b"), check, "b");
  check.require_least_dims(b, "b", 2);
  if (r.b_layout == "nk") return with_contiguous_rows(std::move(b), check, "b");
  Array turned = b;
  swap_last(turned);
  if (turned.has_contiguous_rows()) return turned;
  return copy_by("transposed", b, check, "b");
}

// Returns the stride of a dimension of the batch; dimension 0 is the innermost.
int64_t batch_stride(const Array& x, int d) {
  const int axis = x.ndim - 3 - d;
  return axis >= 0 && x.shape[axis] > 1 ? x.strides[axis] : 0;
}
int64_t batch_size(const Array& x, int d) {
  const int axis = x.ndim - 3 - d;
  return axis >= 0 ? x.shape[axis] : 1;
}

MatricesArg matrices_arg(const Array& x) {
  MatricesArg arg{x.data, row_stride(x), 1, {}};
  for (int d = 0; d < kBatchDims; ++d) arg.batch[kBatchDims - 1 - d] = batch_stride(x, d);
  return arg;
}

// Turns the innermost dimensions of the batch into rows where B and the bias are the same for them.
void merge_into_rows(MatmulSoftmaxParams& p, const Array& a) {
  int last = kBatchDims - 1;
  for (; last >= 0; --last) {
    const int64_t n = p.sizes[last];
    const auto follows = [&](const MatricesArg& t) {
      return p.rows == 1 ? are_near(t.batch[last], a) : t.batch[last] == p.rows * t.row;
    };
    const bool shares = n == 1 || (p.b.batch[last] == 0 && follows(p.a) && follows(p.out) &&
                                   (!p.bias.data || follows(p.bias)) && n * p.rows < kMostExtent);
    if (!shares) break;
    if (n == 1) continue;
    if (p.rows == 1) {
      for (MatricesArg* t : {&p.a, &p.out, &p.bias}) t->row = t->batch[last];
    }
    p.rows = static_cast<int32_t>(n * p.rows);
  }
  for (int d = last + 1; d < kBatchDims; ++d) {
    p.sizes[d] = 1;
    for (MatricesArg* t : {&p.a, &p.b, &p.out, &p.bias}) t->batch[d] = 0;
  }
  // A single row may have any stride, but messages need a valid one.
  if (p.rows == 1) {
    p.a.row = p.inputs;
    p.out.row = p.columns;
  }
  if (p.columns == 1) p.b.row = p.inputs;
}

Array read_bias(const SoftmaxRequest& r, const Array& a, const Array& out, const Checker& check) {
  if (r.bias.is_none()) return {};
  Array bias = with_whole_strides(read_array(r.bias, check, "bias"), check, "bias");
  XF_REQUIRE_DTYPE(
      check, bias.dtype == a.dtype || bias.dtype == DType::kF32, bias, "bias",
      std::string("must have the dtype of a (") + name_of(a.dtype) + ") or be float32");
  check.require_same_place(bias, "bias", a, "a");
  bool fits = bias.ndim <= out.ndim;
  for (int i = 1; fits && i <= bias.ndim; ++i) {
    const int64_t n = bias.shape[bias.ndim - i];
    fits = n == 1 || n == out.shape[out.ndim - i];
  }
  XF_REQUIRE(check, fits, "bias",
             "must broadcast to the shape " + out.describe_shape() + " of the result",
             bias.describe_shape(), bias);
  while (bias.ndim < 2) {  // ones in front
    bias.shape[1] = bias.ndim == 1 ? bias.shape[0] : 1;
    bias.strides[1] = bias.ndim == 1 ? bias.strides[0] : 0;
    bias.shape[0] = 1;
    bias.strides[0] = 0;
    bias.ndim = 2;
  }
  return bias;
}

Array read_out(const SoftmaxRequest& r, const Array& a, const std::vector<int64_t>& shape,
               const Checker& check) {
  Array out = read_array(r.out, check, "out");
  check.require_dtype_of(out, "out", a, "a");
  check.require_same_place(out, "out", a, "a");
  check.require_shape(out, "out", shape);
  XF_REQUIRE(check, out.has_contiguous_rows(), "out", "must have a contiguous last dimension",
             "strides " + out.describe_strides(), out);
  XF_REQUIRE(check, out.writable, "out", "must be writable", "one that is read-only", out);
  XF_REQUIRE(check, !overlaps_itself(out), "out", "must not have elements in one place",
             "strides " + out.describe_strides(), out);
  return out;
}

void refuse_overlap(const Array& out, const Array& x, const char* name, const Checker& check) {
  XF_REQUIRE(check, !overlap(out, x.copied ? *x.copied : x), "out",
             std::string("must not share memory with ") + name, "arrays that overlap", out);
}

// Returns the shape of the result: the broadcast batch of a and b, rows and columns.
std::vector<int64_t> result_shape(const Array& a, const Array& b, const Checker& check) {
  std::vector<int64_t> shape;
  int64_t batches = 1;
  const int dims = std::max(a.ndim, b.ndim) - 2;
  XF_REQUIRE(check, dims <= kBatchDims, "a", "must have at most 8 dimensions",
             std::to_string(dims + 2), a);
  for (int d = dims - 1; d >= 0; --d) {
    const int64_t batch_a = batch_size(a, d), batch_b = batch_size(b, d);
    XF_REQUIRE(check, batch_a == batch_b || batch_a == 1 || batch_b == 1, "b",
               "must have batches that broadcast with those of a " + a.describe_shape(),
               b.describe_shape(), b);
    shape.push_back(batch_a == 1 ? batch_b : batch_a);
    batches *= shape.back();
  }
  XF_REQUIRE(check, batches < kMostExtent, "a", "must have fewer than 2^31 - 1024 matrices",
             std::to_string(batches), a);
  shape.push_back(a.shape[a.ndim - 2]);
  shape.push_back(b.shape[b.ndim - 2]);
  return shape;
}

void check_options(const SoftmaxRequest& r, const Checker& check) {
  if (r.b_layout != "nk" && r.b_layout != "kn")
    check.refuse("b_layout", "must be \"nk\" or \"kn\", got \"" + r.b_layout + "\"");
  check.require(fits_float(r.scale), "scale", "finite in float32", r.scale);
}

void check_extents(const SoftmaxRequest& r, const Array& a, const Array& b, const Checker& check) {
  const int64_t rows = a.shape[a.ndim - 2], inputs = a.shape[a.ndim - 1];
  const int64_t columns = b.shape[b.ndim - 2];
  XF_REQUIRE(check, b.shape[b.ndim - 1] == inputs, "b",
             "must have the " + std::to_string(inputs) + " inputs of a in its " +
                 (r.b_layout == "nk" ? "last" : "last but one") + " dimension",
             std::to_string(b.shape[b.ndim - 1]), b);
  XF_REQUIRE(check, inputs > 0, "a", "must have inputs", "0", a);
  XF_REQUIRE(check, columns > 0, "b", "must have columns, as a softmax is of one at least", "0", b);
  XF_REQUIRE(check, rows < kMostExtent && inputs < kMostExtent, "a",
             "must have extents below 2^31 - 1024", a.describe_shape(), a);
  XF_REQUIRE(check, columns < kMostExtent, "b", "must have extents below 2^31 - 1024",
             b.describe_shape(), b);
}

Array read_a(const SoftmaxRequest& r, const Checker& check) {
  Array a = read_rows(r.a, check, "a");
  check.require_float(a, "a");
  check.require_least_dims(a, "a", 2);
  return a;
}

// The arrays of a call. A GPU can reach their rows after bring_near().
struct Matrices {
  Matrices(const SoftmaxRequest& r, const Checker& check)
      : a(read_a(r, check)), b(read_b(r, check)), place(place_of(a)) {
    check.require_dtype_of(b, "b", a, "a");
    check.require_same_place(b, "b", a, "a");
    check_extents(r, a, b, check);
    const std::vector<int64_t> shape = result_shape(a, b, check);
    refuse_to_wait_while_recording(place, a, "a", check);
    out = r.out.is_none() ? new_array(a, a.dtype, shape) : read_out(r, a, shape, check);
    bias = read_bias(r, a, out, check);
    if (r.out.is_none()) return;
    refuse_overlap(out, a, "a", check);
    refuse_overlap(out, b, "b", check);
    if (bias.data) refuse_overlap(out, bias, "bias", check);
  }

  bool on_gpu() const { return place.device.facts.on_gpu(); }

  Array a, b;
  Place place;
  Array out, bias;
};

// A GPU reads whole steps of inputs, and reaches rows by 32 bits.
void bring_near(Matrices& m, const Checker& check) {
  const int64_t inputs = m.a.shape[m.a.ndim - 1];
  const int64_t padded = whole(inputs, inputs <= kDepthInputs ? kDepthInputs : kMessageInputs);
  m.a = with_inputs(std::move(m.a), padded, "a", check);
  m.b = with_inputs(std::move(m.b), padded, "b", check);
  XF_REQUIRE(check, are_near(row_stride(m.out), m.out), "out",
             "must have rows 0 to 2^27 - 1 bytes apart on a GPU",
             "strides " + m.out.describe_strides(), m.out);
}

MatmulSoftmaxParams params_of(const SoftmaxRequest& r, const Matrices& m) {
  MatmulSoftmaxParams p{};
  p.a = matrices_arg(m.a);
  p.b = matrices_arg(m.b);
  p.out = matrices_arg(m.out);
  if (m.bias.data) {
    const int last = m.bias.ndim - 1;
    p.bias = matrices_arg(m.bias);
    p.bias.col = m.bias.shape[last] > 1 ? m.bias.strides[last] : 0;
  }
  for (int d = 0; d < kBatchDims; ++d)
    p.sizes[kBatchDims - 1 - d] = static_cast<int32_t>(batch_size(m.out, d));
  p.rows = static_cast<int32_t>(m.a.shape[m.a.ndim - 2]);
  p.columns = static_cast<int32_t>(m.b.shape[m.b.ndim - 2]);
  p.inputs = static_cast<int32_t>(m.a.shape[m.a.ndim - 1]);
  p.scale = static_cast<float>(r.scale);
  p.is_log = r.log;
  merge_into_rows(p, m.a);
  return p;
}

// Returns the widest access that the rows of all matrices and their strides in the batch allow.
Access access_of(const MatmulSoftmaxParams& p, const Matrices& m) {
  if (!m.on_gpu()) return Access::kNone;
  const auto matrix = [](Array x, const MatricesArg& arg, int64_t rows, int64_t columns) {
    x.ndim = 2;
    x.shape = {rows, columns};
    x.strides = {arg.row, 1};
    return x;
  };
  const Array a = matrix(m.a, p.a, p.rows, p.inputs), b = matrix(m.b, p.b, p.columns, p.inputs);
  const Array out = matrix(m.out, p.out, p.rows, p.columns);
  Access access = access_of_matrices({&a, &b, &out}, m.place.device.facts.arch);
  for (const MatricesArg* arg : {&p.a, &p.b, &p.out}) {
    for (const int64_t stride : arg->batch) {
      const int64_t bytes = stride * size_of(a.dtype);
      if (bytes % 4 != 0) return Access::kElements;
      if (bytes % kLineBytes != 0) access = std::max(access, Access::kDwords);
    }
  }
  return access;
}

SoftmaxDesc describe(const MatmulSoftmaxParams& p, const Matrices& m) {
  const ProductSchedule& sizes = product_schedule_of(m.place.device);
  const int step = sizes.step_inputs;
  SoftmaxDesc desc;
  desc.dtype = m.a.dtype;
  desc.rows = rows_for(p.rows, sizes);
  desc.columns = power_for(p.columns);
  desc.bias = m.bias.data ? m.bias.dtype : DType::kOther;
  desc.more_inputs = p.inputs > step;
  desc.inputs = static_cast<uint16_t>(!desc.more_inputs                     ? p.inputs
                                      : p.inputs % (2 * step) == 0          ? 2 * step
                                      : p.inputs % step == 0 || !m.on_gpu() ? step
                                                                            : sizes.few_inputs);
  desc.access = access_of(p, m);
  return desc;
}

// Divides the blocks of rows. On a GPU each group has one block. On a CPU workers take blocks in
// turn, and keep the scores of one block.
void share_out(MatmulSoftmaxParams& p, Scratch& scratch, const Matrices& m, const Kernels& kernels,
               const Checker& check) {
  int64_t groups = divide_up(p.rows, int64_t{kernels.block_q} * kernels.threads);
  for (const int32_t n : p.sizes) groups *= n;
  XF_REQUIRE(check, groups < kMostExtent, "a", "must have fewer than 2^31 - 1024 blocks of rows",
             std::to_string(groups), m.a);
  p.groups = p.workers = static_cast<int32_t>(groups);
  if (m.on_gpu()) return;
  const int64_t tiles = divide_up(p.columns, kernels.block_v);
  const int64_t kept = tiles * (int64_t{kernels.block_q} * kernels.block_v + kLineFloats);
  p.workers = std::min<int32_t>(p.groups, m.place.device.facts.compute_units);
  scratch.allocate(m.place, m.a, p.workers * kept);
  p.tiles = scratch.data;
}

}  // namespace

// Returns softmax(scale A B^T + bias).
py::object matmul_softmax(const SoftmaxRequest& r, const Checker& check) {
  check_options(r, check);
  Matrices m(r, check);
  if (m.out.is_empty()) return m.out.object;
  if (m.on_gpu()) bring_near(m, check);
  MatmulSoftmaxParams p = params_of(r, m);
  const Kernels& kernels = find_kernels(describe(p, m), m.place);
  Scratch scratch;
  share_out(p, scratch, m, kernels, check);
  if (!r.out.is_none()) count_writes({&m.out});
  submit(m.place, [&](Launcher& launch) {
    launch(*kernels.entries[0], p, static_cast<uint64_t>(p.workers), kernels.threads);
  });
  return m.out.object;
}

static const Offered<SoftmaxRequest, matmul_softmax> kSoftmax("matmul_softmax");

}  // namespace xeflash
