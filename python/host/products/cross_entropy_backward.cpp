// Computes the gradients of a head's loss, one block of the vocabulary after the other, and of each
// one block of rows after the other.
#include <algorithm>
#include <string>
#include <vector>

#include "host/arrays/function.hpp"
#include "host/products/logits.hpp"
#include "host/products/targets.hpp"
#include "products/matmul_params.hpp"

namespace xeflash {
namespace {

struct HeadBackwardRequest {
  std::string function = "linear_cross_entropy";
  py::object input = py::none(), linear_weight = py::none(), target = py::none();
  py::object linear_bias = py::none();
  py::object state = py::none();  // of the forward pass
  // The factors of a row's gradient of_p P - of_target [target] - of_all, in fp32.
  py::object of_p = py::none(), of_target = py::none(), of_all = py::none();
  double softcap = 0.0, logit_scale = 1.0;
  bool wants_input = true, wants_weight = true, wants_bias = true;
  py::object logits = py::none();  // of all columns, which are then not recomputed
  // The sums in fp32 that gradients are written to: (rows, inputs), (columns, inputs) and
  // (columns), with room for whole blocks. With `adds`, the gradients of weight and bias are added
  // to them.
  py::object dinput = py::none(), dweight = py::none(), dbias = py::none();
  bool adds = false;
};

XF_FIELDS(HeadBackwardRequest, function, input, linear_weight, target, linear_bias, state, of_p,
          of_target, of_all, softcap, logit_scale, wants_input, wants_weight, wants_bias, logits,
          dinput, dweight, dbias, adds);

// The factors of the gradients of rows.
struct RowFactors {
  Array state, of_p, of_target, of_all;
};

RowFactors read_factors(const HeadBackwardRequest& r, const Head& head, const Checker& check) {
  const auto read = [&](const py::object& object, const char* name, int64_t count) {
    Array x = read_array(object, check, name);
    check.require_dtype(x, name, DType::kF32);
    check.require_same_place(x, name, head.input, "input");
    XF_REQUIRE(check, bytes_of(x) == 4 * count && x.is_packed(), name,
               "must be packed and have " + std::to_string(count) + " elements", x.describe_shape(),
               x);
    return x;
  };
  return {read(r.state, "state", 2 * head.rows), read(r.of_p, "of_p", head.rows),
          read(r.of_target, "of_target", head.rows), read(r.of_all, "of_all", head.rows)};
}

// Reads an array for sums in fp32: the rows of a matrix, or one row.
Array read_sums(const py::object& object, const char* name, int64_t rows, int64_t columns,
                const Head& head, const Checker& check) {
  if (object.is_none()) return {};
  Array x = read_array(object, check, name);
  check.require_dtype(x, name, DType::kF32);
  check.require_same_place(x, name, head.input, "input");
  const int64_t unit = head.sizes().sums_unit;
  const bool fits = x.is_packed() && x.shape[x.ndim - 1] >= columns && x.writable &&
                    x.ndim == (rows ? 2 : 1) && (!rows || x.shape[0] >= rows) &&
                    x.shape[x.ndim - 1] % unit == 0;
  XF_REQUIRE(check, fits, name,
             "must be packed, writable, and have rows of a multiple of " + std::to_string(unit),
             x.describe_shape(), x);
  return x;
}

// The destination of an array's gradient: a new array like it, or the caller's sums in fp32.
struct HeadGradient {
  Array array;
  bool wanted = false, is_sum = false;

  py::object object() const { return wanted ? array.object : py::none(); }
};
struct HeadGradients {
  HeadGradient input, weight, bias;

  py::object objects() const {
    return py::make_tuple(input.object(), weight.object(), bias.object());
  }
};

HeadGradients read_gradients(const HeadBackwardRequest& r, const Head& head, const Checker& check) {
  const auto gradient = [](const Array& sums, bool wanted) {
    return HeadGradient{sums, wanted, sums.data != nullptr};
  };
  HeadGradients to{
      gradient(read_sums(r.dinput, "dinput", head.rows, head.inputs, head, check), r.wants_input),
      gradient(read_sums(r.dweight, "dweight", head.columns, head.inputs, head, check),
               r.wants_weight),
      gradient(read_sums(r.dbias, "dbias", 0, head.columns, head, check),
               r.wants_bias && head.bias.data)};
  const auto make = [&](HeadGradient& g, const std::vector<int64_t>& shape) {
    if (g.wanted && !g.is_sum) g.array = new_array(head.input, head.input.dtype, shape);
  };
  std::vector<int64_t> input_shape = head.shape;
  input_shape.push_back(head.features);
  make(to.input, input_shape);
  make(to.weight, {head.columns, head.features});
  make(to.bias, {head.columns});
  return to;
}

// Clears the gradients of a call without rows.
void clear_gradients(const HeadGradients& to, const Place& place) {
  submit(place, [&](Launcher& launch) {
    for (const HeadGradient* g : {&to.weight, &to.bias}) {
      if (g->wanted) clear(launch, g->array);
    }
  });
}

// The number of rows and columns of slopes that are in memory at a time.
struct SlopeBlocks {
  int64_t rows, columns, slopes_row, turned_row;
  int64_t element;  // bytes
};
SlopeBlocks slope_blocks(const Head& head) {
  const ProductSchedule& s = head.sizes();
  SlopeBlocks b{};
  b.rows = std::min<int64_t>(head.rows, s.slope_rows);
  b.columns = std::max<int64_t>(s.slope_columns, s.slope_elements / b.rows);
  b.columns =
      std::min(whole(head.columns, s.logits_unit), b.columns / s.logits_unit * s.logits_unit);
  b.slopes_row = b.columns + s.slope_gap;
  b.turned_row = whole(b.rows, s.slope_unit) + s.slope_gap;
  const std::string& arch = head.place.device.facts.arch;
  const bool pairs = arch == "cpu-avx512-bf16" || arch == "cpu-amx-bf16";
  b.element =
      head.on_gpu() || (pairs && head.input.dtype == DType::kBF16) ? size_of(head.input.dtype) : 4;
  return b;
}

// The sums of products with slopes in fp32, and the result that they are rounded to at last, if
// any.
struct Sums {
  float* data;
  int64_t row;
  std::byte* rounded = nullptr;
};

// Computes the slopes of a block of logits, and adds their products to the gradients.
class Pass {
 public:
  Pass(const Head& head, const HeadGradients& to, bool adds)
      : head_(head),
        to_(to),
        adds_(adds),
        blocks_(slope_blocks(head)),
        slopes_kernels_(find_kernels(
            head.describe(Algorithm::logit_slopes, blocks_.rows, head.inputs), head.place)),
        product_kernels_(find_kernels(describe_product(), head.place)) {
    head.fill(p_);
  }

  CrossEntropyParams& params() { return p_; }  // of all rows and columns

  void allocate(Scratch& scratch);

  void run(Launcher& launch) const {
    for (int64_t j = 0; j < p_.columns; j += blocks_.columns) {
      for (int64_t i = 0; i < p_.rows; i += blocks_.rows) run_block(launch, i, j);
    }
  }

 private:
  SoftmaxDesc describe_product() const {
    const auto rounded = [](const HeadGradient& g) {
      return g.wanted && !g.is_sum ? &g.array : nullptr;
    };
    SoftmaxDesc desc =
        head_.describe(Algorithm::matmul_add, blocks_.rows, head_.sizes().slope_unit);
    desc.access = head_.access_with({rounded(to_.input), rounded(to_.weight)});
    return desc;
  }
  int64_t element() const { return size_of(head_.input.dtype); }
  // Returns whether the result of a product can hold its own sums, as results in fp32 do on CPUs.
  bool in_place() const { return !head_.on_gpu() && head_.input.dtype == DType::kF32; }
  bool needs_sums(const HeadGradient& g) const { return g.wanted && !g.is_sum && !in_place(); }
  int64_t tile_rows() const { return int64_t{product_kernels_.block_q} * product_kernels_.threads; }
  int64_t own_row() const { return whole(head_.inputs, product_kernels_.block_v); }

  Sums sums_of(const HeadGradient& g, std::byte* own) const {
    auto* data = reinterpret_cast<float*>(g.array.data);
    if (g.is_sum) return {data, g.array.shape[1]};
    if (in_place()) return {data, head_.features};
    return {reinterpret_cast<float*>(own), own_row(), g.array.data};
  }

  void run_block(Launcher& launch, int64_t i, int64_t j) const;
  CrossEntropyParams params_of_block(int64_t i, int64_t j) const;
  MatmulAddParams product(const Sums& sums, int64_t first) const;
  void multiply(Launcher& launch, MatmulAddParams m) const;

  const Head& head_;
  const HeadGradients& to_;
  const bool adds_;
  const SlopeBlocks blocks_;
  const Kernels &slopes_kernels_, &product_kernels_;
  CrossEntropyParams p_{};
  int64_t zeroed_ = 0;  // bytes of slopes and what is turned of them
  Sums input_sums_{}, weight_sums_{};
};

void Pass::allocate(Scratch& scratch) {
  const bool one_block = blocks_.rows >= head_.rows;
  const int64_t slope_rows = whole(blocks_.rows, head_.sizes().slope_unit);
  const int64_t turned_bytes = blocks_.columns * blocks_.turned_row * blocks_.element;
  const auto sum_bytes = [&](bool needed, int64_t rows) {
    return needed ? whole(rows, tile_rows()) * own_row() * 4 : 0;
  };
  Plan plan;
  const int64_t slopes = plan.add(slope_rows * blocks_.slopes_row * blocks_.element);
  const int64_t turned = plan.add(turned_bytes);
  const int64_t x_sums = plan.add(sum_bytes(needs_sums(to_.input), head_.rows));
  const int64_t w_sums = plan.add(sum_bytes(needs_sums(to_.weight) && !one_block, blocks_.columns));
  const bool sums_bias = to_.bias.wanted && !to_.bias.is_sum;
  const int64_t bias_sums = plan.add(sums_bias ? whole(blocks_.columns, kLineFloats) * 4 : 0);
  p_.workers = head_.place.device.facts.compute_units;
  const int64_t kept = plan.add(kept_bytes(p_, slopes_kernels_, head_));
  scratch.allocate(head_.place, head_.input, plan.floats());
  auto* memory = reinterpret_cast<std::byte*>(scratch.data);
  zeroed_ = turned + turned_bytes - slopes;
  p_.slopes = memory + slopes;
  p_.turned = to_.weight.wanted ? memory + turned : nullptr;
  p_.slopes_row = blocks_.slopes_row;
  p_.turned_row = blocks_.turned_row;
  p_.bias_sums = reinterpret_cast<float*>(memory + bias_sums);
  p_.kept = memory + kept;
  input_sums_ = sums_of(to_.input, memory + x_sums);
  weight_sums_ = sums_of(to_.weight, memory + w_sums);
}

CrossEntropyParams Pass::params_of_block(int64_t i, int64_t j) const {
  CrossEntropyParams q = p_;
  q.x = static_cast<const std::byte*>(p_.x) + i * p_.x_row * element();
  q.weight = static_cast<const std::byte*>(p_.weight) + j * p_.weight_row * element();
  if (p_.bias) q.bias = static_cast<const std::byte*>(p_.bias) + j * element();
  q.rows = static_cast<int32_t>(std::min<int64_t>(blocks_.rows, p_.rows - i));
  q.columns = static_cast<int32_t>(std::min<int64_t>(blocks_.columns, p_.columns - j));
  q.first = static_cast<int32_t>(j);
  q.state += i, q.of_p += i, q.of_target += i, q.of_all += i;
  q.target.data += i * q.target.dwords;
  if (q.logits) q.logits += i * q.logits_row;
  q.adds = adds_ || i > 0;
  if (to_.bias.is_sum)
    q.bias_sums = reinterpret_cast<float*>(to_.bias.array.data) + j;
  else if (to_.bias.wanted)
    q.bias_slopes = to_.bias.array.data + j * element();
  share_out(q, slopes_kernels_, head_.sizes().logits_unit, head_);
  return q;
}

void Pass::run_block(Launcher& launch, int64_t i, int64_t j) const {
  const CrossEntropyParams q = params_of_block(i, j);
  // GPUs read behind the last rows and columns, where no numbers of other blocks may be.
  if (head_.on_gpu() && (i + j == 0 || q.rows < blocks_.rows || q.columns < blocks_.columns))
    launch.clear(p_.slopes, zeroed_);
  launch(*slopes_kernels_.entries[0], q, static_cast<uint64_t>(q.workers), slopes_kernels_.threads);
  if (to_.bias.wanted)
    launch(*slopes_kernels_.entries[1], q,
           static_cast<uint64_t>(divide_up(q.columns, kLeastLanes)));
  if (to_.input.wanted) {  // dX += D W
    MatmulAddParams m = product(input_sums_, i);
    m.a = p_.slopes;
    m.b = q.weight;
    m.a_row = p_.slopes_row;
    m.b_row = p_.weight_row;
    m.rows = q.rows;
    m.inputs = q.columns;
    m.adds = j > 0;
    if (input_sums_.rounded && j + q.columns == p_.columns)
      m.out = input_sums_.rounded + i * head_.features * element();
    multiply(launch, m);
  }
  if (to_.weight.wanted) {  // dW += D^T X
    MatmulAddParams m = product(weight_sums_, weight_sums_.rounded ? 0 : j);
    m.a = p_.turned;
    m.b = q.x;
    m.a_row = p_.turned_row;
    m.b_row = p_.x_row;
    m.rows = q.columns;
    m.inputs = q.rows;
    m.adds = (to_.weight.is_sum && adds_) || i > 0;
    if (weight_sums_.rounded && i + q.rows == p_.rows)
      m.out = weight_sums_.rounded + j * head_.features * element();
    multiply(launch, m);
  }
}

// Launches a product whose rows are added to sums from row `first` on.
MatmulAddParams Pass::product(const Sums& sums, int64_t first) const {
  MatmulAddParams m{};
  m.columns = p_.inputs;
  m.out_columns = static_cast<int32_t>(head_.features);
  m.sums = sums.data + first * sums.row;
  m.sums_row = sums.row;
  m.out_row = head_.features;
  return m;
}

void Pass::multiply(Launcher& launch, MatmulAddParams m) const {
  const int64_t groups =
      divide_up(m.rows, tile_rows()) * divide_up(m.columns, product_kernels_.block_v);
  m.workers = static_cast<int32_t>(groups);
  launch(*product_kernels_.entries[0], m, static_cast<uint64_t>(groups), product_kernels_.threads);
}

}  // namespace

// Returns the gradients of input, weight and bias; None where one is not wanted.
py::object linear_cross_entropy_backward(const HeadBackwardRequest& r, const Checker& check) {
  const Head head =
      read_head({r.input, r.linear_weight, r.linear_bias, r.softcap, r.logit_scale}, check);
  const Targets targets = read_targets(r.target, head, check);
  const RowFactors factors = read_factors(r, head, check);
  const HeadGradients to = read_gradients(r, head, check);
  if (head.rows == 0) {
    if (!r.adds) clear_gradients(to, head.place);
    return to.objects();
  }
  Pass pass(head, to, r.adds);
  CrossEntropyParams& p = pass.params();
  const auto floats = [](const Array& a) { return reinterpret_cast<float*>(a.data); };
  p.target = targets.arg;
  p.state = floats(factors.state);
  p.of_p = floats(factors.of_p);
  p.of_target = floats(factors.of_target);
  p.of_all = floats(factors.of_all);
  p.all_rows = p.rows;
  const Array logits = read_logits(r.logits, p, head, check);
  Scratch scratch;
  pass.allocate(scratch);
  submit(head.place, [&](Launcher& launch) { pass.run(launch); });
  return to.objects();
}

static const Offered<HeadBackwardRequest, linear_cross_entropy_backward> kBackward(
    "linear_cross_entropy_backward");

}  // namespace xeflash
