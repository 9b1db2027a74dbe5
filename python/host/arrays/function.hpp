// The functions that Python calls with the fields of a request by name.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "host/arrays/read_value.hpp"

namespace xeflash {

struct Function {
  std::string name;
  py::object (*run)(const py::kwargs& arguments);
  py::tuple (*fields)();  // (name, type, default, "") of each argument
};

inline std::vector<Function>& functions() {
  static auto& all = *new std::vector<Function>;
  return all;
}

// A file that has a function offers it by an object of this type, and the module finds it in
// functions().
template <class Request, py::object run(const Request&, const Checker&)>
struct Offered {
  explicit Offered(const char* name) {
    const auto call = [](const py::kwargs& arguments) {
      const auto request = read_request<Request>(arguments);
      return run(request, Checker(request.function));
    };
    const auto fields = [] {
      py::list all;
      list_fields(all, Request{}, [](const char*) { return ""; });
      return py::tuple(all);
    };
    functions().push_back({name, call, fields});
  }
};

}  // namespace xeflash
