#include "host/products/sample.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "host/arrays/checks.hpp"
#include "host/arrays/place.hpp"
#include "host/arrays/read_value.hpp"
#include "host/arrays/rows.hpp"
#include "host/products/desc.hpp"
#include "products/sample_params.hpp"

namespace xeflash {
namespace {

struct SampleRequest {
  std::string function = "sample";
  py::object logits = py::none();
  int64_t seed = 0, position = 0;
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0, min_p = 0.0;
  // One for each row, in the place of these.
  py::object seeds = py::none(), positions = py::none(), temperatures = py::none();
  py::object top_ks = py::none(), top_ps = py::none(), min_ps = py::none();
  double softcap = 0.0, logit_scale = 1.0;
  bool min_p_last = false;
  int64_t first_row = 0;
};

XF_FIELDS(SampleRequest, function, logits, seed, position, temperature, top_k, top_p, min_p, seeds,
          positions, temperatures, top_ks, top_ps, min_ps, softcap, logit_scale, min_p_last,
          first_row);

constexpr int64_t kMostColumns = int64_t{1} << 30;

std::string text_of(double x) { return py::str(py::float_(x)).cast<std::string>(); }

// Numbers of rows: of an array, which lives as long as `kept` does, or one for all.
class RowNumbers {
 public:
  RowNumbers(const Array& logits, int64_t rows, const Checker& check)
      : logits_(logits), rows_(rows), check_(check) {}

  template <class T, class Value>
  PerRow<T> read(const py::object& object, const char* name, DType dtype, Value value) {
    if (object.is_none()) return {nullptr, static_cast<T>(value)};
    Array a = read_array(object, check_, name);
    XF_REQUIRE_DTYPE(check_, a.dtype == dtype, a, name, std::string("must be ") + name_of(dtype));
    check_.require_same_place(a, name, logits_, "logits");
    int64_t count = 1;
    for (int i = 0; i < a.ndim; ++i) count *= a.shape[i];
    bool fits = count == rows_ && (a.ndim == 1 || a.ndim == logits_.ndim - 1);
    for (int i = 0; fits && a.ndim > 1 && i < a.ndim; ++i) fits = a.shape[i] == logits_.shape[i];
    XF_REQUIRE(check_, fits, name,
               "must have a number for each of the " + std::to_string(rows_) + " rows of logits",
               a.describe_shape(), a);
    if (!a.is_packed()) a = packed_copy(a, check_, name);
    kept_.push_back(a);
    return {reinterpret_cast<const T*>(a.data), T{}};
  }

 private:
  const Array& logits_;
  int64_t rows_;
  const Checker& check_;
  std::vector<Array> kept_;
};

void require(const Checker& check, bool holds, const char* name, const std::string& rule,
             double value) {
  if (!holds) check.refuse(name, "must be " + rule + ", got " + text_of(value));
}

}  // namespace

py::tuple sample_fields() {
  py::list all;
  list_fields(all, SampleRequest{}, kFieldsOf<SampleRequest>);
  return py::tuple(all);
}

py::object sample(const py::kwargs& arguments) {
  const auto r = read_request<SampleRequest>(arguments);
  const Checker check(r.function);
  const auto is_share = [](double x) { return x >= 0 && x <= 1; };
  const auto fits = [](double x) { return std::abs(x) <= 3.4028234663852886e38; };
  require(check, r.temperature >= 0 && fits(r.temperature), "temperature",
          "0 or positive, and finite", r.temperature);
  require(check, is_share(r.top_p), "top_p", "0 to 1", r.top_p);
  require(check, is_share(r.min_p), "min_p", "0 to 1", r.min_p);
  require(check, r.softcap >= 0 && fits(r.softcap), "softcap", "0 or positive, and finite",
          r.softcap);
  require(check, r.logit_scale > 0 && fits(r.logit_scale), "logit_scale", "positive and finite",
          r.logit_scale);
  Array z = with_contiguous_rows(read_array(r.logits, check, "logits"), check, "logits");
  XF_REQUIRE_DTYPE(check, is_float(z.dtype), z, "logits", "must be float32, float16 or bfloat16");
  XF_REQUIRE(check, z.ndim >= 1, "logits", "must have at least 1 dimension", "0", z);
  const int64_t columns = z.shape[z.ndim - 1];
  XF_REQUIRE(check, columns > 0 && columns <= kMostColumns, "logits",
             "must have 1 to 2^30 tokens in its last dimension", std::to_string(columns), z);
  const std::vector<int64_t> shape(z.shape.begin(), z.shape.begin() + z.ndim - 1);
  if (!has_even_rows(z)) z = packed_copy(z, check, "logits");
  const Array rows = as_rows(z);
  const Place place = place_of(z);
  refuse_to_wait_while_recording(place, z, "logits", check);

  SampleParams p{};
  RowNumbers numbers(z, rows.shape[0], check);
  p.temperature = numbers.read<float>(r.temperatures, "temperature", DType::kF32, r.temperature);
  p.top_p = numbers.read<float>(r.top_ps, "top_p", DType::kF32, r.top_p);
  p.min_p = numbers.read<float>(r.min_ps, "min_p", DType::kF32, r.min_p);
  const int64_t top_k = std::clamp<int64_t>(r.top_k, 0, kMostColumns);
  p.top_k = numbers.read<int32_t>(r.top_ks, "top_k", DType::kI32, top_k);
  p.seed = numbers.read<int64_t>(r.seeds, "seed", DType::kI64, r.seed);
  p.position = numbers.read<int64_t>(r.positions, "position", DType::kI64, r.position);
  const Array tokens = new_array(z, DType::kI64, shape);
  if (rows.shape[0] == 0) return tokens.object;
  p.logits = rows.data;
  p.logits_row = rows.shape[0] > 1 ? rows.strides[0] : columns;
  p.tokens = reinterpret_cast<uint32_t*>(tokens.data);
  p.scale = static_cast<float>(r.logit_scale);
  p.softcap = normal_cap(r.softcap);
  p.inverse_cap = p.softcap > 0 ? 1.f / p.softcap : 0.f;
  p.rows = static_cast<int32_t>(std::min<int64_t>(rows.shape[0], INT32_MAX));
  p.columns = static_cast<int32_t>(columns);
  p.first_row = static_cast<int32_t>(r.first_row);
  p.min_p_last = r.min_p_last;

  SoftmaxDesc desc;
  desc.algorithm = Algorithm::sample_tokens;
  desc.dtype = z.dtype;
  const bool on_gpu = place.device.facts.arch.rfind("cpu-", 0) != 0;
  desc.access = on_gpu ? Access::kDwords : Access::kNone;  // reads elements where they lie
  check_groups(static_cast<uint64_t>(rows.shape[0]), desc.access);
  const Kernels& kernels = find_kernels(desc, place);
  submit(place, [&](Launcher& launch) {
    launch(*kernels.entries[0], p, static_cast<uint64_t>(rows.shape[0]), kernels.threads);
  });
  return tokens.object;
}

}  // namespace xeflash
