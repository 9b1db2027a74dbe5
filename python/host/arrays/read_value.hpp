// Reads values that Python passes by name, each as the type of its member.
#pragma once

#include <pybind11/pybind11.h>

#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

#include "host/arrays/checks.hpp"
#include "host/device/fields.hpp"

namespace xeflash {
namespace py = pybind11;

// A value, with the name that a message has for it.
struct Value {
  PyObject* object;
  const char* name;
  const Checker& check;

  // Raises a TypeError that says what the value must be.
  [[noreturn]] void refuse(const std::string& rule) const {
    PyErr_Clear();
    check.refuse<py::type_error>(name, rule + ", got " +
                                           py::repr(object).cast<std::string>().substr(0, 60) +
                                           " (" + Py_TYPE(object)->tp_name + ")");
  }
};

inline void read(py::object& to, const Value& value) {
  to = py::reinterpret_borrow<py::object>(value.object);
}

inline void read(std::string& to, const Value& value) {
  if (!PyUnicode_Check(value.object)) value.refuse("must be a string");
  to = py::handle(value.object).cast<std::string>();
}

inline void read(bool& to, const Value& value) {
  const char* type = Py_TYPE(value.object)->tp_name;
  const bool numpy = std::strcmp(type, "numpy.bool") == 0 || std::strcmp(type, "numpy.bool_") == 0;
  if (!PyBool_Check(value.object) && !numpy) value.refuse("must be True or False");
  to = PyObject_IsTrue(value.object) == 1;
}

template <class Integer>
  requires std::is_integral_v<Integer>
inline void read(Integer& to, const Value& value) {
  if (PyBool_Check(value.object) || !PyIndex_Check(value.object))
    value.refuse("must be an integer");
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.object));
  if (!index) value.refuse("must be an integer");
  if constexpr (std::is_signed_v<Integer>) {
    to = PyLong_AsLongLong(index.ptr());
  } else {
    to = PyLong_AsUnsignedLongLong(index.ptr());
  }
  if (!PyErr_Occurred()) return;
  PyErr_Clear();
  value.check.refuse(value.name,
                     std::string("must be ") +
                         (std::is_signed_v<Integer> ? "-2^63 to 2^63 - 1" : "0 to 2^64 - 1") +
                         ", got " + py::str(index).cast<std::string>());
}

inline void read(double& to, const Value& value) {
  PyObject* const x = value.object;
  const PyNumberMethods* can = Py_TYPE(x)->tp_as_number;
  if (PyBool_Check(x) || !can || !(can->nb_float || can->nb_index)) {
    value.refuse("must be a number");
  }
  to = PyFloat_AsDouble(x);
  if (to == -1 && PyErr_Occurred()) value.refuse("must be a number");
}

template <class T>
inline void read(std::optional<T>& to, const Value& value) {
  if (value.object == Py_None) return;
  read(to.emplace(), value);
}

// These functions return the name of a type in call/schema.py, and a value as Python has it.
template <class T>
std::string kind_of(const T&) {
  if constexpr (std::is_same_v<T, py::object>) return "object";
  if constexpr (std::is_same_v<T, std::string>) return "str";
  if constexpr (std::is_same_v<T, bool>) return "bool";
  if constexpr (std::is_floating_point_v<T>) return "float";
  return "int";
}
template <class T>
std::string kind_of(const std::optional<T>&) {
  return kind_of(T{}) + "?";
}
template <class T>
py::object value_to_python(const T& value) {
  if constexpr (std::is_enum_v<T>)
    return py::int_(static_cast<int>(value));
  else if constexpr (std::is_same_v<T, py::object>)
    return value;
  else
    return py::cast(value);
}
template <class T>
py::object value_to_python(const std::optional<T>& value) {
  return value ? value_to_python(*value) : py::none();
}

// Reads the members of a request by the names of its fields; raises a TypeError for any other name.
template <class Request>
Request read_request(const py::kwargs& given) {
  constexpr const auto& fields = kFieldsOf<Request>;
  Request r;
  const Checker check(r.function);
  size_t known = 0;
  const auto read_one = [&](const auto& f) {
    if (PyObject* x = PyDict_GetItemString(given.ptr(), f.name)) {
      read(r.*f.member, Value{x, f.name, check});
      ++known;
    }
  };
  std::apply([&](const auto&... f) { (read_one(f), ...); }, fields);
  if (known == given.size()) return r;
  for (const auto& [name, value] : given) {
    const auto text = py::str(name).template cast<std::string>();
    if (std::apply([&](const auto&... f) { return ((text == f.name) || ...); }, fields)) continue;
    throw py::type_error(r.function + "() has no argument " +
                         py::repr(name).template cast<std::string>());
  }
  return r;
}

// Adds (name, type, default, other name) of each field to a list, in order.
template <class Struct>
void list_fields(py::list& all, const Struct& defaults, const char* (*other_name)(const char*)) {
  const auto add = [&](const auto& f) {
    const auto& value = defaults.*f.member;
    all.append(py::make_tuple(f.name, kind_of(value), value_to_python(value), other_name(f.name)));
  };
  std::apply([&](const auto&... f) { (add(f), ...); }, kFieldsOf<Struct>);
}

}  // namespace xeflash
