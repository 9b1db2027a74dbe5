#include "host/products/sample.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "host/arrays/function.hpp"
#include "host/arrays/place.hpp"
#include "host/products/desc.hpp"
#include "host/products/rows.hpp"
#include "products/sample_params.hpp"

namespace xeflash {
namespace {

constexpr int64_t kMostColumns = int64_t{1} << 30;

// Reads one number per row from an array, which lives as long as `kept` does, or one number for all
// rows.
class RowNumbers {
 public:
  RowNumbers(const Array& logits, int64_t rows, const Checker& check)
      : logits_(logits), rows_(rows), check_(check) {}

  template <class T, class Value>
  PerRow<T> read(const py::object& object, const char* name, DType dtype, Value value) {
    if (object.is_none()) return {nullptr, static_cast<T>(value)};
    Array a = read_array(object, check_, name);
    check_.require_dtype(a, name, dtype);
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

void check_numbers(const SampleRequest& r, const Checker& check) {
  const auto is_share = [](double x) { return x >= 0 && x <= 1; };
  check.require(r.temperature >= 0 && fits_float(r.temperature), "temperature",
                "0 or positive, and finite", r.temperature);
  check.require(is_share(r.top_p), "top_p", "0 to 1", r.top_p);
  check.require(is_share(r.min_p), "min_p", "0 to 1", r.min_p);
  check.require(r.softcap >= 0 && fits_float(r.softcap), "softcap", "0 or positive, and finite",
                r.softcap);
  check.require(r.logit_scale > 0 && fits_float(r.logit_scale), "logit_scale",
                "positive and finite", r.logit_scale);
}

Array read_logits(const SampleRequest& r, const Checker& check) {
  Array z = read_rows(r.logits, check, "logits");
  check.require_float(z, "logits");
  check.require_least_dims(z, "logits", 1);
  const int64_t columns = z.shape[z.ndim - 1];
  XF_REQUIRE(check, columns > 0 && columns <= kMostColumns, "logits",
             "must have 1 to 2^30 tokens in its last dimension", std::to_string(columns), z);
  if (!has_even_rows(z)) z = packed_copy(std::move(z), check, "logits");
  return z;
}

void set_numbers(SampleParams& p, const SampleRequest& r, RowNumbers& numbers) {
  p.temperature = numbers.read<float>(r.temperatures, "temperature", DType::kF32, r.temperature);
  p.top_p = numbers.read<float>(r.top_ps, "top_p", DType::kF32, r.top_p);
  p.min_p = numbers.read<float>(r.min_ps, "min_p", DType::kF32, r.min_p);
  const int64_t top_k = std::clamp<int64_t>(r.top_k, 0, kMostColumns);
  p.top_k = numbers.read<int32_t>(r.top_ks, "top_k", DType::kI32, top_k);
  p.seed = numbers.read<int64_t>(r.seeds, "seed", DType::kI64, r.seed);
  p.position = numbers.read<int64_t>(r.positions, "position", DType::kI64, r.position);
  p.scale = static_cast<float>(r.logit_scale);
  p.softcap = normal_cap(r.softcap);
  p.inverse_cap = p.softcap > 0 ? 1.f / p.softcap : 0.f;
  p.first_row = static_cast<int32_t>(r.first_row);
  p.min_p_last = r.min_p_last;
}

}  // namespace

py::object sample(const SampleRequest& r, const Checker& check) {
  check_numbers(r, check);
  const Array z = read_logits(r, check);
  const Array rows = as_rows(z);
  const Place place = place_of(z);
  refuse_to_wait_while_recording(place, z, "logits", check);
  SampleParams p{};
  RowNumbers numbers(z, rows.shape[0], check);
  set_numbers(p, r, numbers);
  const Array tokens = new_array(z, DType::kI64, {z.shape.begin(), z.shape.begin() + z.ndim - 1});
  if (rows.shape[0] == 0) return tokens.object;
  p.logits = rows.data;
  p.logits_row = rows.shape[0] > 1 ? rows.strides[0] : rows.shape[1];
  p.tokens = reinterpret_cast<uint32_t*>(tokens.data);
  p.rows = static_cast<int32_t>(std::min<int64_t>(rows.shape[0], INT32_MAX));
  p.columns = static_cast<int32_t>(rows.shape[1]);

  SoftmaxDesc desc;
  desc.algorithm = Algorithm::sample_tokens;
  desc.dtype = z.dtype;
  if (place.device.facts.on_gpu()) desc.access = Access::kDwords;  // elements as they lie
  const auto groups = static_cast<uint64_t>(rows.shape[0]);
  check_groups(groups, desc.access);
  const Kernels& kernels = find_kernels(desc, place);
  submit(place, [&](Launcher& launch) { launch(*kernels.entries[0], p, groups, kernels.threads); });
  return tokens.object;
}

static const Offered<SampleRequest, sample> kSample("sample");

}  // namespace xeflash
