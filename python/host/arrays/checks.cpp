#include "host/arrays/checks.hpp"

namespace xeflash {
namespace {

std::string text_of_dims(int dims) {
  return std::to_string(dims) + (dims == 1 ? " dimension" : " dimensions");
}

}  // namespace

std::string text_of(double x) { return py::str(py::float_(x)).cast<std::string>(); }

std::string text_of_shape(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t n : shape) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return "[" + text + "]";
}

void Checker::require_float(const Array& a, const char* name) const {
  XF_REQUIRE_DTYPE(*this, is_float(a.dtype), a, name, "must be float32, float16 or bfloat16");
}

void Checker::require_dtype(const Array& a, const char* name, DType dtype) const {
  XF_REQUIRE_DTYPE(*this, a.dtype == dtype, a, name, std::string("must be ") + name_of(dtype));
}

void Checker::require_dtype_of(const Array& a, const char* name, const Array& q,
                               const char* q_name) const {
  XF_REQUIRE_DTYPE(*this, a.dtype == q.dtype, a, name,
                   "must have the dtype of " + word(q_name) + " (" + name_of(q.dtype) + ")");
}

void Checker::require_dims(const Array& a, const char* name, int dims) const {
  XF_REQUIRE(*this, a.ndim == dims, name, "must have " + text_of_dims(dims), std::to_string(a.ndim),
             a);
}

void Checker::require_least_dims(const Array& a, const char* name, int dims) const {
  XF_REQUIRE(*this, a.ndim >= dims, name, "must have at least " + text_of_dims(dims),
             std::to_string(a.ndim), a);
}

void Checker::require_shape(const Array& a, const char* name, const std::vector<int64_t>& shape,
                            const char* of) const {
  XF_REQUIRE(*this, has_shape(a, shape), name, "must have the shape " + text_of_shape(shape) + of,
             a.describe_shape(), a);
}

void Checker::require(bool holds, const char* name, const char* rule, double got) const {
  if (!holds) refuse(name, std::string("must be ") + rule + ", got " + text_of(got));
}

}  // namespace xeflash
