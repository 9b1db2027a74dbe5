// The gradients of a head's loss: blocks of the vocabulary in turn, of each blocks of rows.
#include <algorithm>

#include "host/arrays/read_value.hpp"
#include "host/products/cross_entropy.hpp"
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
  // What a row's gradient is made of, in fp32: of_p P - of_target [target] - of_all.
  py::object of_p = py::none(), of_target = py::none(), of_all = py::none();
  double softcap = 0.0, logit_scale = 1.0;
  bool wants_input = true, wants_weight = true, wants_bias = true;
  py::object logits = py::none();  // of all columns: they are not made again
  // In fp32, what gradients go to: (rows, inputs), (columns, inputs) and (columns), with room for
  // whole blocks; `adds`: those of weight and bias join what is there.
  py::object dinput = py::none(), dweight = py::none(), dbias = py::none();
  bool adds = false;
};

XF_FIELDS(HeadBackwardRequest, function, input, linear_weight, target, linear_bias, state, of_p,
          of_target, of_all, softcap, logit_scale, wants_input, wants_weight, wants_bias, logits,
          dinput, dweight, dbias, adds);

const float* read_floats(const py::object& object, const char* name, int64_t count,
                         const Head& head, const Checker& check, std::vector<Array>& keep) {
  Array x = read_array(object, check, name);
  XF_REQUIRE_DTYPE(check, x.dtype == DType::kF32, x, name, "must be float32");
  check.require_same_place(x, name, head.input, "input");
  int64_t elements = 1;
  for (int i = 0; i < x.ndim; ++i) elements *= x.shape[i];
  XF_REQUIRE(check, elements == count && x.is_packed(), name,
             "must be packed and have " + std::to_string(count) + " elements", x.describe_shape(),
             x);
  keep.push_back(x);
  return reinterpret_cast<const float*>(keep.back().data);
}

// Where sums in fp32 go: rows of a matrix, or a line.
Array read_sums(const py::object& object, const char* name, int64_t rows, int64_t columns,
                const Head& head, const Checker& check) {
  if (object.is_none()) return {};
  Array x = read_array(object, check, name);
  XF_REQUIRE_DTYPE(check, x.dtype == DType::kF32, x, name, "must be float32");
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

// Rows and columns of slopes that are in memory at a time.
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
      head.on_gpu || (pairs && head.input.dtype == DType::kBF16) ? size_of(head.input.dtype) : 4;
  return b;
}

}  // namespace

py::tuple linear_cross_entropy_backward(const py::kwargs& arguments) {
  const auto r = read_request<HeadBackwardRequest>(arguments);
  const Checker check(r.function);
  const Head head =
      read_head({r.input, r.linear_weight, r.linear_bias, r.softcap, r.logit_scale}, check);
  const Targets targets = read_targets(r.target, head, check);
  std::vector<Array> keep;
  keep.reserve(4);
  const float* state = read_floats(r.state, "state", 2 * head.rows, head, check, keep);
  const float* of_p = read_floats(r.of_p, "of_p", head.rows, head, check, keep);
  const float* of_target = read_floats(r.of_target, "of_target", head.rows, head, check, keep);
  const float* of_all = read_floats(r.of_all, "of_all", head.rows, head, check, keep);

  const DType dtype = head.input.dtype;
  const int64_t features = head.features;
  const Array sums_x = read_sums(r.dinput, "dinput", head.rows, head.inputs, head, check);
  const Array sums_w = read_sums(r.dweight, "dweight", head.columns, head.inputs, head, check);
  const Array sums_b = read_sums(r.dbias, "dbias", 0, head.columns, head, check);
  Array dx = sums_x, dw = sums_w, dbias = sums_b;
  if (r.wants_input && !dx.data) {
    std::vector<int64_t> shape = head.shape;
    shape.push_back(features);
    dx = new_array(head.input, dtype, shape);
  }
  if (r.wants_weight && !dw.data) dw = new_array(head.input, dtype, {head.columns, features});
  const bool wants_bias = r.wants_bias && head.bias.data;
  if (wants_bias && !dbias.data) dbias = new_array(head.input, dtype, {head.columns});
  const auto results = [&] {
    return py::make_tuple(r.wants_input ? dx.object : py::none(),
                          r.wants_weight ? dw.object : py::none(),
                          wants_bias ? dbias.object : py::none());
  };
  if (head.rows == 0) {
    if (!r.adds) {
      submit(head.place, [&](Launcher& launch) {
        if (r.wants_weight) clear(launch, dw);
        if (wants_bias) clear(launch, dbias);
      });
    }
    return results();
  }

  const SlopeBlocks blocks = slope_blocks(head);
  SoftmaxDesc desc = head.describe(Algorithm::logit_slopes, blocks.rows, head.inputs);
  const Kernels& of_slopes = find_kernels(desc, head.place);
  desc = head.describe(Algorithm::matmul_add, blocks.rows, head.sizes().slope_unit);
  desc.access = head.access_with({r.wants_input && !sums_x.data ? &dx : nullptr,
                                  r.wants_weight && !sums_w.data ? &dw : nullptr});
  const Kernels& of_product = find_kernels(desc, head.place);

  CrossEntropyParams p{};
  head.fill(p);
  const Array logits = read_logits(r.logits, p, head, check);
  p.target = targets.arg;
  p.state = const_cast<float*>(state);
  p.of_p = of_p;
  p.of_target = of_target;
  p.of_all = of_all;
  p.all_rows = p.rows;
  p.slopes_row = blocks.slopes_row;
  p.turned_row = blocks.turned_row;
  // Sums of a product in fp32: the result itself is one on CPUs.
  const bool in_place = !head.on_gpu && dtype == DType::kF32;
  const bool one_block = blocks.rows >= head.rows;
  const int64_t sums_row = whole(head.inputs, of_product.block_v);
  const int64_t tile_rows = int64_t{of_product.block_q} * of_product.threads;
  Plan plan;
  const int64_t slopes =
      plan.add(whole(blocks.rows, head.sizes().slope_unit) * blocks.slopes_row * blocks.element);
  const int64_t turned = plan.add(blocks.columns * blocks.turned_row * blocks.element);
  const int64_t zeroed = turned + blocks.columns * blocks.turned_row * blocks.element - slopes;
  const int64_t x_sums = plan.add(
      r.wants_input && !in_place && !sums_x.data ? whole(head.rows, tile_rows) * sums_row * 4 : 0);
  const int64_t w_sums = plan.add(r.wants_weight && !in_place && !one_block && !sums_w.data
                                      ? whole(blocks.columns, tile_rows) * sums_row * 4
                                      : 0);
  const int64_t bias_sums =
      plan.add(wants_bias && !sums_b.data ? whole(blocks.columns, kLineFloats) * 4 : 0);
  p.workers = head.place.device.facts.compute_units;
  const int64_t kept = plan.add(kept_bytes(p, of_slopes, head));
  Scratch scratch;
  scratch.allocate(head.place, head.input, plan.floats());
  auto* memory = reinterpret_cast<std::byte*>(scratch.data);
  p.slopes = memory + slopes;
  p.turned = r.wants_weight ? memory + turned : nullptr;
  p.bias_sums = reinterpret_cast<float*>(memory + bias_sums);
  p.kept = memory + kept;

  const auto* x = static_cast<const std::byte*>(p.x);
  const auto* weight = static_cast<const std::byte*>(p.weight);
  const auto* bias = static_cast<const std::byte*>(p.bias);
  const int64_t bytes = size_of(dtype), all_columns = p.columns, all_rows = p.rows;
  const auto multiply = [&](Launcher& launch, MatmulAddParams& m) {
    const int64_t groups = divide_up(m.rows, tile_rows) * divide_up(m.columns, of_product.block_v);
    m.workers = static_cast<int32_t>(groups);
    launch(*of_product.entries[0], m, static_cast<uint64_t>(groups), of_product.threads);
  };
  submit(head.place, [&](Launcher& launch) {
    for (int64_t j = 0; j < all_columns; j += blocks.columns) {
      const int64_t columns = std::min(blocks.columns, all_columns - j);
      for (int64_t i = 0; i < all_rows; i += blocks.rows) {
        const int64_t rows = std::min(blocks.rows, all_rows - i);
        // GPUs read behind the last rows and columns: no numbers of earlier blocks, or of others.
        if (head.on_gpu && (i + j == 0 || rows < blocks.rows || columns < blocks.columns))
          launch.clear(memory + slopes, zeroed);
        CrossEntropyParams q = p;
        q.x = x + i * p.x_row * bytes;
        q.weight = weight + j * p.weight_row * bytes;
        q.bias = bias ? bias + j * bytes : nullptr;
        q.rows = static_cast<int32_t>(rows);
        q.columns = static_cast<int32_t>(columns);
        q.first = static_cast<int32_t>(j);
        q.state += i, q.of_p += i, q.of_target += i, q.of_all += i;
        q.target.data += i * q.target.dwords;
        if (q.logits) q.logits += i * q.logits_row;
        share_out(q, of_slopes, head.sizes().logits_unit, head);
        launch(*of_slopes.entries[0], q, static_cast<uint64_t>(q.workers), of_slopes.threads);
        const bool is_first = i == 0, is_last = i + rows == all_rows;
        if (wants_bias) {
          q.adds = r.adds || !is_first;
          if (sums_b.data)
            q.bias_sums = reinterpret_cast<float*>(sums_b.data) + j;
          else
            q.bias_slopes = dbias.data + j * bytes;
          launch(*of_slopes.entries[1], q, static_cast<uint64_t>(divide_up(columns, kLeastLanes)));
        }
        if (r.wants_input) {  // dX += D W
          MatmulAddParams m{};
          m.a = p.slopes;
          m.b = q.weight;
          m.a_row = p.slopes_row;
          m.b_row = p.weight_row;
          m.rows = q.rows;
          m.columns = p.inputs;
          m.out_columns = static_cast<int32_t>(features);
          m.inputs = q.columns;
          m.sums = reinterpret_cast<float*>(in_place || sums_x.data ? dx.data : memory + x_sums);
          m.sums_row = sums_x.data ? sums_x.shape[1] : in_place ? features : sums_row;
          m.sums += i * m.sums_row;
          m.out = !in_place && !sums_x.data && j + columns == all_columns
                      ? dx.data + i * features * bytes
                      : nullptr;
          m.out_row = features;
          m.adds = j > 0;
          multiply(launch, m);
        }
        if (r.wants_weight) {  // dW += D^T X
          MatmulAddParams m{};
          m.a = p.turned;
          m.b = q.x;
          m.a_row = p.turned_row;
          m.b_row = p.x_row;
          m.rows = q.columns;
          m.columns = p.inputs;
          m.out_columns = static_cast<int32_t>(features);
          m.inputs = q.rows;
          std::byte* out = dw.data + j * features * bytes;
          m.sums = reinterpret_cast<float*>(in_place ? out : memory + w_sums);
          m.sums_row = in_place ? features : sums_row;
          if (sums_w.data) {
            m.sums_row = sums_w.shape[1];
            m.sums = reinterpret_cast<float*>(dw.data) + j * m.sums_row;
          }
          m.out = !in_place && !sums_w.data && is_last ? out : nullptr;
          m.out_row = features;
          m.adds = (sums_w.data && r.adds) || !is_first;
          multiply(launch, m);
        }
      }
    }
  });
  return results();
}

}  // namespace xeflash
