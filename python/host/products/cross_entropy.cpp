// Computes the loss of a language model's head, without its logits in memory.
#include <algorithm>
#include <limits>
#include <optional>

#include "host/arrays/function.hpp"
#include "host/products/logits.hpp"
#include "host/products/targets.hpp"

namespace xeflash {
namespace {

// The arguments of a call: CrossEntropyArguments in call/schema.py has the same.
struct CrossEntropyRequest {
  std::string function = "linear_cross_entropy";
  py::object input = py::none(), linear_weight = py::none(), target = py::none();
  py::object linear_bias = py::none();
  std::string reduction = "mean";
  int64_t ignore_index = -100;
  double label_smoothing = 0.0, softcap = 0.0, logit_scale = 1.0, z_loss = 0.0;
  double divisor = 0.0;            // divides the sum instead of the number of rows; 0: none
  bool log_prob = false;           // the negative of a loss of rows that all count
  int64_t workspace = 0;           // torch_ops has it
  py::object logits = py::none();  // fp32, (rows, V and more), which logits go to
};

XF_FIELDS(CrossEntropyRequest, function, input, linear_weight, target, linear_bias, reduction,
          ignore_index, label_smoothing, softcap, logit_scale, z_loss, divisor, log_prob, workspace,
          logits);

void check_numbers(const CrossEntropyRequest& r, const Checker& check) {
  if (r.reduction != "none" && r.reduction != "mean" && r.reduction != "sum")
    check.refuse("reduction", "must be \"none\", \"mean\" or \"sum\", got \"" + r.reduction + "\"");
  check.require(r.label_smoothing >= 0 && r.label_smoothing <= 1, "label_smoothing", "0 to 1",
                r.label_smoothing);
  check.require(r.z_loss >= 0 && fits_float(r.z_loss), "z_loss",
                "0 or positive, and finite in float32", r.z_loss);
  if (r.divisor == 0) return;
  check.require(r.divisor >= std::numeric_limits<float>::min() && fits_float(r.divisor), "divisor",
                "positive and finite in float32", r.divisor);
  check.require(r.reduction == "mean", "divisor", "None but for reduction = \"mean\"", r.divisor);
}

// Returns the parameters of a launch, but for those in the call's own memory.
CrossEntropyParams params_of(const CrossEntropyRequest& r, const Head& head, const Targets& targets,
                             const Kernels& kernels) {
  CrossEntropyParams p{};
  head.fill(p);
  p.target = targets.arg;
  share_out(p, kernels, part_of(head), head);
  p.smoothing = static_cast<float>(r.label_smoothing);
  p.sums_logits = r.label_smoothing > 0;
  p.z_loss = static_cast<float>(r.z_loss);
  p.sign = r.log_prob ? -1.f : 1.f;
  p.divisor = r.reduction == "sum" ? 1.f : static_cast<float>(r.divisor);
  return p;
}

}  // namespace

// Returns (loss, LSE, state for the backward pass).
py::object linear_cross_entropy(const CrossEntropyRequest& r, const Checker& check) {
  check_numbers(r, check);
  const Head head =
      read_head({r.input, r.linear_weight, r.linear_bias, r.softcap, r.logit_scale}, check);
  Targets targets = read_targets(r.target, head, check);
  set_ignored(targets, r.log_prob ? std::nullopt : std::optional(r.ignore_index), head, check);
  const bool per_row = r.reduction == "none";
  const Array lse = new_array(head.input, DType::kF32, head.shape);
  const Array state = new_array(head.input, DType::kF32, {2, head.rows});
  const Array loss = per_row ? new_array(head.input, DType::kF32, head.shape)
                             : new_array(head.input, DType::kF32, {});
  const py::tuple results = py::make_tuple(loss.object, lse.object, state.object);
  if (head.rows == 0 && per_row) return results;

  const Kernels& kernels = find_kernels(
      head.describe(Algorithm::linear_cross_entropy, head.rows, head.inputs), head.place);
  CrossEntropyParams p = params_of(r, head, targets, kernels);
  p.state = reinterpret_cast<float*>(state.data);
  p.lse = reinterpret_cast<float*>(lse.data);
  const Array logits = read_logits(r.logits, p, head, check);
  Plan plan;
  const int64_t stats = plan.add(int64_t{p.parts} * kStats * p.rows * 4);
  const int64_t losses = plan.add(per_row ? 0 : int64_t{p.rows} * 4);
  const int64_t kept = plan.add(kept_bytes(p, kernels, head));
  Scratch scratch;
  scratch.allocate(head.place, head.input, plan.floats());
  auto* memory = reinterpret_cast<std::byte*>(scratch.data);
  p.stats = reinterpret_cast<float*>(memory + stats);
  p.kept = memory + kept;
  p.losses = reinterpret_cast<float*>(per_row ? loss.data : memory + losses);
  p.sum = per_row ? nullptr : reinterpret_cast<float*>(loss.data);
  submit(head.place, [&](Launcher& launch) {
    if (p.rows > 0) {
      launch(*kernels.entries[0], p, static_cast<uint64_t>(p.workers), kernels.threads);
      launch(*kernels.entries[1], p, static_cast<uint64_t>(divide_up(p.rows, kLeastLanes)));
    }
    if (p.sum) launch(*kernels.entries[2], p, 1);
  });
  return results;
}

static const Offered<CrossEntropyRequest, linear_cross_entropy> kLoss("linear_cross_entropy");

}  // namespace xeflash
