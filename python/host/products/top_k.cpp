// Finds the largest logits of a language model's head.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "host/arrays/function.hpp"
#include "host/products/linear.hpp"
#include "host/products/logits.hpp"
#include "host/products/sample.hpp"
#include "host/products/targets.hpp"

namespace xeflash {
namespace {

// The arguments of a call: TopKArguments in call/schema.py has the same.
struct TopKRequest {
  std::string function = "linear_top_k";
  py::object input = py::none(), linear_weight = py::none();
  int64_t k = 1;
  py::object linear_bias = py::none();
  double softcap = 0.0, logit_scale = 1.0;
  bool argmax = false;  // results have no dimension of k
};

XF_FIELDS(TopKRequest, function, input, linear_weight, k, linear_bias, softcap, logit_scale,
          argmax);

constexpr int64_t kMostK = 64;

// Returns the number of columns of a part. The largest logits do not depend on it, so with few rows
// each core gets a part.
int64_t part_for_cores(const Head& head, const Kernels& kernels) {
  const int64_t part = part_of(head);
  const int64_t least = head.sizes().core_columns;
  if (!least) return part;
  const int64_t parts =
      divide_up(head.place.device.facts.compute_units, divide_up(head.rows, kernels.block_q));
  return std::min(part, std::max(least, divide_up(head.columns, parts)));
}

// Returns whether `linear` can find the largest logit: rows are few, the device is a CPU, and the
// largest value of x W^T + bias is the largest logit. `linear` takes weights whose rows lie apart.
bool is_argmax_of_few(const TopKRequest& r, const Head& head) {
  int exponent = 0;  // a power of two rounds nothing
  return r.argmax && !head.input.queue && head.rows <= head.sizes().few_rows && head.softcap == 0 &&
         head.scale > 0 && std::frexp(head.scale, &exponent) == 0.5f &&
         (head.columns == 1 || head.weight.strides[0] >= head.inputs);
}

// Finds the largest logits by a product, and by drawing from its result at temperature 0.
py::object argmax_of_few(const TopKRequest& r, const Head& head, const Array& values,
                         const Array& tokens, const Checker& check) {
  const LinearRequest product{.function = r.function,
                              .x = r.input,
                              .weight = head.weight.object,
                              .bias = r.linear_bias,
                              .wide = true};
  const SampleRequest choice{
      .function = r.function, .logits = linear(product, check), .temperature = 0.0};
  const Array z = read_array(choice.logits, check, "input");
  const Array found = read_array(sample(choice, check), check, "input");
  const auto* logits = reinterpret_cast<const float*>(z.data);
  for (int64_t row = 0; row < head.rows; ++row) {
    const int64_t token = reinterpret_cast<const int64_t*>(found.data)[row];
    const bool is_there = token >= 0;  // a row may have no number
    reinterpret_cast<int64_t*>(tokens.data)[row] = is_there ? token : 0;
    reinterpret_cast<float*>(values.data)[row] =
        is_there ? logits[row * head.columns + token] * head.scale
                 : -std::numeric_limits<float>::infinity();
  }
  return py::make_tuple(values.object, tokens.object);
}

}  // namespace

// Returns (values, tokens).
py::object linear_top_k(const TopKRequest& r, const Checker& check) {
  if (r.k < 1 || r.k > (r.argmax ? 1 : kMostK))
    check.refuse("k", "must be 1 to 64, got " + std::to_string(r.k));
  const Head head =
      read_head({r.input, r.linear_weight, r.linear_bias, r.softcap, r.logit_scale}, check);
  if (r.k > head.columns)
    check.refuse("k", "must be at most the " + std::to_string(head.columns) +
                          " rows of linear_weight, got " + std::to_string(r.k));
  std::vector<int64_t> shape = head.shape;
  if (!r.argmax) shape.push_back(r.k);
  const Array values = new_array(head.input, DType::kF32, shape);
  const Array tokens = new_array(head.input, DType::kI64, shape);
  const py::tuple results = py::make_tuple(values.object, tokens.object);
  if (head.rows == 0) return results;
  if (is_argmax_of_few(r, head)) return argmax_of_few(r, head, values, tokens, check);

  const Kernels& kernels =
      find_kernels(head.describe(Algorithm::linear_top_k, head.rows, head.inputs), head.place);
  TopKParams p{};
  head.fill(p);
  share_out(p, kernels, part_for_cores(head, kernels), head);
  p.k = static_cast<int32_t>(r.k);
  p.length = static_cast<int32_t>(whole(r.k, kListStep));
  p.largest = reinterpret_cast<float*>(values.data);
  p.largest_tokens = reinterpret_cast<uint32_t*>(tokens.data);
  Plan plan;
  const int64_t list_bytes = int64_t{p.rows} * p.parts * p.length * 4;
  const int64_t values_offset = plan.add(list_bytes), tokens_offset = plan.add(list_bytes);
  const int64_t kept = plan.add(kept_bytes(p, kernels, head));
  Scratch scratch;
  scratch.allocate(head.place, head.input, plan.floats());
  auto* memory = reinterpret_cast<std::byte*>(scratch.data);
  p.values = reinterpret_cast<float*>(memory + values_offset);
  p.tokens = reinterpret_cast<int32_t*>(memory + tokens_offset);
  p.kept = memory + kept;
  submit(head.place, [&](Launcher& launch) {
    launch(*kernels.entries[0], p, static_cast<uint64_t>(p.workers), kernels.threads);
    launch(*kernels.entries[1], p, static_cast<uint64_t>(p.rows));
  });
  return results;
}

static const Offered<TopKRequest, linear_top_k> kTopK("linear_top_k");

}  // namespace xeflash
