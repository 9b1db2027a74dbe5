// Messages of refused arguments: "function: argument rule, got value; argument.shape = [...]".
#pragma once

#include <string>

#include "array.hpp"

namespace xeflash {

class Checker {
 public:
  explicit Checker(const std::string& function) : function_(function) {}

  template <class Error = py::value_error>
  [[noreturn]] void refuse(const std::string& rule) const {
    throw Error(function_ + ": " + rule);
  }
  // A rule that starts with a point concerns an attribute of the argument: ".head_dim must be ...".
  template <class Error = py::value_error>
  void require(bool holds, const char* name, const std::string& rule, const std::string& got,
               const Array& a) const {
    if (holds) return;
    const char* space = rule[0] == '.' ? "" : " ";
    refuse<Error>(std::string(name) + space + rule + ", got " + got + "; " + name +
                  ".shape = " + a.describe_shape());
  }
  void require_dtype(const Array& a, const char* name, const std::string& rule, bool holds) const {
    require<py::type_error>(holds, name, rule, name_of(a.dtype), a);
  }
  void require_same_place(const Array& a, const char* name, const Array& q,
                          const char* q_name) const {
    if (a.queue != q.queue || a.device_type != q.device_type || a.device_id != q.device_id) {
      refuse<py::value_error>(std::string(name) + " must be on the device of " + q_name);
    }
  }
  const char* function() const { return function_.c_str(); }

 private:
  const std::string& function_;
};

}  // namespace xeflash
