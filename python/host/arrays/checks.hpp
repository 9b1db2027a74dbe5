// Refuses arguments by messages such as "function: argument rule, got value; argument.shape =
// [...]".
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "host/arrays/array.hpp"
#include "host/device/errors.hpp"

namespace xeflash {

// Messages are put together only when they are needed: a call should cost a few microseconds.
#define XF_REQUIRE(check, holds, ...) \
  if (!(holds)) (check).refuse(__VA_ARGS__)
#define XF_REQUIRE_DTYPE(check, holds, ...) \
  if (!(holds)) (check).refuse_dtype(__VA_ARGS__)

// Returns a softcap as kernels take it; 0 is off. s and s / cap must be normal floats, too: nothing
// would be left of a score below the least one, and a cap above 2^100 changes only scores near
// 2^100.
inline float normal_cap(double cap) {
  if (cap == 0) return 0.f;
  return static_cast<float>(std::clamp<double>(cap, std::numeric_limits<float>::min(), 0x1p100));
}

// Returns whether a number is at most the largest float.
inline bool fits_float(double x) { return std::abs(x) <= std::numeric_limits<float>::max(); }

inline std::string number(int64_t n) { return std::to_string(n); }
std::string text_of(double x);                                 // returns it as Python shows it
std::string text_of_shape(const std::vector<int64_t>& shape);  // "[2, 8, 64]"

class Checker {
 public:
  // The words that messages have for arguments, if the caller has other words than the schema.
  using WordOf = std::string (*)(const void* call, const char* name);

  explicit Checker(const std::string& function) : function_(function) {}
  Checker(const std::string& function, const void* call, WordOf word_of)
      : function_(function), call_(call), word_of_(word_of) {}

  // Returns the word that a message has for the argument of this name. It is looked up only for a
  // message.
  std::string word(const char* name) const { return word_of_ ? word_of_(call_, name) : name; }

  template <class Error = py::value_error>
  [[noreturn]] void refuse(const std::string& rule) const {
    throw Error(function_ + ": " + rule);
  }
  // A rule that starts with a point concerns an attribute of the argument: ".head_dim must be ...".
  template <class Error = py::value_error>
  [[noreturn]] void refuse(const char* name, const std::string& rule) const {
    refuse<Error>(word(name) + (rule[0] == '.' ? "" : " ") + rule);
  }
  template <class Error = py::value_error>
  [[noreturn]] void refuse(const char* name, const std::string& rule, const std::string& got,
                           const Array& a) const {
    refuse<Error>(name,
                  rule + ", got " + got + "; " + word(name) + ".shape = " + a.describe_shape());
  }
  [[noreturn]] void refuse_dtype(const Array& a, const char* name, const std::string& rule) const {
    refuse<py::type_error>(name, rule, a.describe_dtype(), a);
  }
  void require_same_place(const Array& a, const char* name, const Array& q,
                          const char* q_name) const {
    if (a.queue == q.queue && a.device_type == q.device_type && a.device_id == q.device_id) return;
    const std::string here = a.place(), there = q.place();
    const char* what = here == there ? "queue" : "device";
    refuse(name, std::string("must be on the ") + what + " of " + word(q_name) + " (" + there +
                     "), got " + (here == there ? "another one" : here));
  }
  // These rules are shared by functions.
  void require_float(const Array& a, const char* name) const;  // one that is multiplied as it is
  void require_dtype(const Array& a, const char* name, DType dtype) const;
  void require_dtype_of(const Array& a, const char* name, const Array& q, const char* q_name) const;
  void require_dims(const Array& a, const char* name, int dims) const;
  void require_least_dims(const Array& a, const char* name, int dims) const;
  void require_shape(const Array& a, const char* name, const std::vector<int64_t>& shape,
                     const char* of = "") const;
  // `rule` is what a number must be; messages show it as Python does.
  void require(bool holds, const char* name, const char* rule, double got) const;

  const char* function() const { return function_.c_str(); }

 private:
  const std::string& function_;
  const void* call_ = nullptr;
  WordOf word_of_ = nullptr;  // null: arguments have no other words
};

}  // namespace xeflash
