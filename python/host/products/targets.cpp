#include "host/products/targets.hpp"

#include <algorithm>

namespace xeflash {
namespace {

template <class T>
void refuse_others(const Array& y, const Head& head, std::optional<int64_t> ignored,
                   const Checker& check) {
  const auto* tokens = reinterpret_cast<const T*>(y.data);
  for (int64_t i = 0; i < head.rows; ++i) {
    if (tokens[i] == ignored || (tokens[i] >= 0 && tokens[i] < head.columns)) continue;
    check.refuse("target",
                 "must be 0 to " + std::to_string(head.columns - 1) +
                     (ignored ? ", or " + std::to_string(*ignored) + " to be ignored" : ""),
                 std::to_string(tokens[i]), y);
  }
}

}  // namespace

Targets read_targets(const py::object& object, const Head& head, const Checker& check) {
  Array y = read_array(object, check, "target");
  if (is_float(y.dtype))
    check.refuse<NotImplemented>("target", "must be tokens, as probabilities are not supported",
                                 y.describe_dtype(), y);
  XF_REQUIRE_DTYPE(check, y.dtype == DType::kI64 || y.dtype == DType::kI32, y, "target",
                   "must be int64 or int32");
  check.require_same_place(y, "target", head.input, "input");
  check.require_shape(y, "target", head.shape, " of the rows of input");
  if (!y.is_packed()) y = packed_copy(y, check, "target");
  Targets targets{y, {}};
  targets.arg.data = reinterpret_cast<const uint32_t*>(y.data);
  targets.arg.dwords = y.dtype == DType::kI64 ? 2 : 1;
  return targets;
}

void set_ignored(Targets& targets, std::optional<int64_t> ignored, const Head& head,
                 const Checker& check) {
  const Array& y = targets.array;
  if (!head.on_gpu() && head.rows > 0 && !Rehearsal::current()) {
    if (y.queue) head.place.queue.wait_and_throw();
    if (y.dtype == DType::kI64)
      refuse_others<int64_t>(y, head, ignored, check);
    else
      refuse_others<int32_t>(y, head, ignored, check);
  }
  targets.arg.ignores = ignored.has_value();
  targets.arg.ignored[0] = static_cast<int32_t>(static_cast<uint32_t>(ignored.value_or(0)));
  targets.arg.ignored[1] = static_cast<int32_t>(ignored.value_or(0) >> 32);
}

Array read_logits(const py::object& object, CrossEntropyParams& p, const Head& head,
                  const Checker& check) {
  if (object.is_none()) return {};
  Array x = read_array(object, check, "logits");
  check.require_dtype(x, "logits", DType::kF32);
  check.require_same_place(x, "logits", head.input, "input");
  const int64_t unit = head.sizes().logits_unit;
  XF_REQUIRE(check,
             x.ndim == 2 && x.shape[0] >= head.rows && x.shape[1] >= head.columns &&
                 x.shape[1] % unit == 0 && x.is_packed(),
             "logits",
             "must be packed and have a row for each of input, a multiple of " +
                 std::to_string(unit) + " long",
             x.describe_shape(), x);
  p.logits = reinterpret_cast<float*>(x.data);
  p.logits_row = x.shape[1];
  return x;
}

int64_t part_of(const Head& head) {
  const ProductSchedule& s = head.sizes();
  return std::max<int64_t>(s.part_columns, divide_up(head.columns, s.parts));
}

}  // namespace xeflash
