#include "arguments.hpp"

#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace xeflash {
namespace {

// A value, and how a message names it.
struct Value {
  PyObject* object;
  const char* name;
  const std::string& function;

  // Raises a TypeError.
  [[noreturn]] void refuse(const char* rule) const {
    PyErr_Clear();
    throw py::type_error(function + ": " + name + " " + rule + ", got " +
                         py::repr(object).cast<std::string>().substr(0, 60) + " (" +
                         Py_TYPE(object)->tp_name + ")");
  }
};

void read(py::object& to, const Value& value) {
  to = py::reinterpret_borrow<py::object>(value.object);
}

void read(std::string& to, const Value& value) {
  if (!PyUnicode_Check(value.object)) value.refuse("must be a string");
  to = py::handle(value.object).cast<std::string>();
}

void read(bool& to, const Value& value) {
  const char* type = Py_TYPE(value.object)->tp_name;
  const bool numpy = std::strcmp(type, "numpy.bool") == 0 || std::strcmp(type, "numpy.bool_") == 0;
  if (!PyBool_Check(value.object) && !numpy) value.refuse("must be True or False");
  to = PyObject_IsTrue(value.object) == 1;
}

template <class Integer>
  requires std::is_integral_v<Integer>
void read(Integer& to, const Value& value) {
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
  throw py::value_error(value.function + ": " + value.name + " must be " +
                        (std::is_signed_v<Integer> ? "-2^63 to 2^63 - 1" : "0 to 2^64 - 1") +
                        ", got " + py::str(index).cast<std::string>());
}

void read(double& to, const Value& value) {
  PyObject* const x = value.object;
  const PyNumberMethods* can = Py_TYPE(x)->tp_as_number;
  if (PyBool_Check(x) || !can || !(can->nb_float || can->nb_index)) {
    value.refuse("must be a number");
  }
  to = PyFloat_AsDouble(x);
  if (to == -1 && PyErr_Occurred()) value.refuse("must be a number");
}

void read(Layout& to, const Value& value) {
  int64_t layout;
  read(layout, value);
  to = static_cast<Layout>(layout);
}

template <class T>
void read(std::optional<T>& to, const Value& value) {
  if (value.object == Py_None) return;
  read(to.emplace(), value);
}

struct Argument {
  const char* name;
  const char* name_of_attention;  // where it has another one
  void (*set)(FwdRequest&, const Value&);
};

template <auto Field>
void set(FwdRequest& r, const Value& value) {
  read(r.*Field, value);
}
template <auto Field>
void set_cache(FwdRequest& r, const Value& value) {
  read(r.cache.*Field, value);
}
template <auto Field>
void set_keys(FwdRequest& r, const Value& value) {
  r.cache.given = true;  // None is one that is refused
  read(r.cache.*Field, value);
}

using R = FwdRequest;
using C = CacheRequest;
constexpr Argument kArguments[] = {
    {"function", nullptr, set<&R::function>},
    {"layout", nullptr, set<&R::layout>},
    {"q", "query", set<&R::q>},
    {"k", "key", set<&R::k>},
    {"v", "value", set<&R::v>},
    {"out", nullptr, set<&R::out>},
    {"softmax_scale", "scale", set<&R::scale>},
    {"causal", "is_causal", set<&R::causal>},
    {"window_left", nullptr, set<&R::left>},
    {"window_right", nullptr, set<&R::right>},
    {"bottom_right", nullptr, set<&R::bottom_right>},
    {"softcap", nullptr, set<&R::softcap>},
    {"alibi_slopes", nullptr, set<&R::alibi>},
    {"s_aux", "sinks", set<&R::sinks>},
    {"attn_mask", nullptr, set<&R::bias>},
    {"score_mod", nullptr, set<&R::score_mod>},
    {"dropout_p", nullptr, set<&R::dropout>},
    {"seed", nullptr, set<&R::seed>},
    {"offset", nullptr, set<&R::offset>},
    {"return_lse", nullptr, set<&R::want_lse>},
    {"rest", nullptr, set<&R::rest>},
    {"enable_gqa", nullptr, set<&R::broadcast_heads>},
    {"num_splits", nullptr, set<&R::splits>},
    {"unified_max", nullptr, set<&R::unified_max>},
    {"cu_seqlens_q", nullptr, set<&R::cu_q>},
    {"cu_seqlens_k", nullptr, set<&R::cu_k>},
    {"max_seqlen_q", nullptr, set<&R::max_q>},
    {"max_seqlen_k", nullptr, set<&R::max_k>},
    {"seqused_k", nullptr, set<&R::used_k>},
    {"k_cache", nullptr, set_keys<&C::k>},
    {"v_cache", nullptr, set_keys<&C::v>},
    {"cache_seqlens", nullptr, set_cache<&C::lengths>},
    {"cache_length", nullptr, set_cache<&C::length>},
    {"cache_batch_idx", nullptr, set_cache<&C::sequences>},
    {"cache_leftpad", nullptr, set_cache<&C::left_pad>},
    {"block_table", nullptr, set_cache<&C::pages>},
    {"beam_index", nullptr, set_cache<&C::beams>},
    {"k_scale", nullptr, set_cache<&C::k_scale>},
    {"v_scale", nullptr, set_cache<&C::v_scale>},
    {"rotary_cos", nullptr, set_cache<&C::cos>},
    {"rotary_sin", nullptr, set_cache<&C::sin>},
    {"rotary_interleaved", nullptr, set_cache<&C::interleaved>},
};

// By the interned name, which is what a call in Python's source passes.
const Argument* find(PyObject* name) {
  static const auto* by_name = [] {
    auto* all = new std::unordered_map<PyObject*, const Argument*>;
    for (const Argument& a : kArguments) all->emplace(PyUnicode_InternFromString(a.name), &a);
    return all;
  }();
  if (const auto found = by_name->find(name); found != by_name->end()) return found->second;
  for (const Argument& a : kArguments) {
    if (PyUnicode_CompareWithASCIIString(name, a.name) == 0) return &a;
  }
  throw py::type_error("forward() has no argument " + py::repr(name).cast<std::string>());
}

}  // namespace

FwdRequest read_arguments(const py::kwargs& given) {
  FwdRequest r;
  for (const Argument& early : {kArguments[0], kArguments[1]}) {  // messages depend on them
    if (PyObject* x = PyDict_GetItemString(given.ptr(), early.name)) {
      early.set(r, {x, early.name, r.function});
    }
  }
  const bool attention = r.layout == Layout::kBHSD;
  PyObject *name, *object;
  for (Py_ssize_t at = 0; PyDict_Next(given.ptr(), &at, &name, &object);) {
    const Argument* argument = find(name);
    const char* public_name =
        attention && argument->name_of_attention ? argument->name_of_attention : argument->name;
    argument->set(r, {object, public_name, r.function});
  }
  return r;
}

py::tuple argument_names() {
  py::list names;
  for (const Argument& a : kArguments) names.append(a.name);
  return py::tuple(names);
}

}  // namespace xeflash
