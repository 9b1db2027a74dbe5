// Gives structs members that Python knows by the same names. Each struct lists them once, as a
// tuple of fields.
#pragma once

#include <pybind11/pybind11.h>

#include <tuple>
#include <type_traits>
#include <utility>

namespace xeflash {

template <class Struct, class T>
struct Field {
  const char* name;
  T Struct::* member;
};

struct Anything {
  template <class T>
  operator T() const;
};

// Returns whether the list has as many fields as the struct has members, but for `others`.
template <size_t others = 0, class Struct, class... T>
consteval bool is_complete(const std::tuple<Field<Struct, T>...>&) {
  const auto takes = []<size_t... I>(std::index_sequence<I...>) {
    return requires { Struct{(static_cast<void>(I), Anything{})...}; };
  };
  return takes(std::make_index_sequence<sizeof...(T) + others>{}) &&
         !takes(std::make_index_sequence<sizeof...(T) + others + 1>{});
}

// XF_FIELDS(Struct, a, b, ...) says that Python knows all members of the struct by their own names,
// XF_SOME_FIELDS that it knows these: kFieldsOf<Struct> has them.
#define XF_FIELDS(Struct, ...)         \
  XF_SOME_FIELDS(Struct, __VA_ARGS__); \
  static_assert(is_complete(fields_of(static_cast<const Struct*>(nullptr))))
#define XF_SOME_FIELDS(Struct, ...)                                  \
  constexpr auto fields_of(const Struct*) {                          \
    return std::tuple{XF_EXPAND(XF_FIELD_AND(Struct, __VA_ARGS__))}; \
  }                                                                  \
  static_assert(true)
// A macro names itself again only in a later scan, of which XF_EXPAND makes 64.
#define XF_FIELD_AND(Struct, member, ...) \
  Field{#member, &Struct::member} __VA_OPT__(, XF_AGAIN XF_PARENS(Struct, __VA_ARGS__))
#define XF_AGAIN() XF_FIELD_AND
#define XF_PARENS ()
#define XF_EXPAND(...) XF_EXPAND_3(XF_EXPAND_3(XF_EXPAND_3(XF_EXPAND_3(__VA_ARGS__))))
#define XF_EXPAND_3(...) XF_EXPAND_2(XF_EXPAND_2(XF_EXPAND_2(XF_EXPAND_2(__VA_ARGS__))))
#define XF_EXPAND_2(...) XF_EXPAND_1(XF_EXPAND_1(XF_EXPAND_1(XF_EXPAND_1(__VA_ARGS__))))
#define XF_EXPAND_1(...) __VA_ARGS__

template <class Struct>
constexpr auto kFieldsOf = fields_of(static_cast<const Struct*>(nullptr));

// Reads the fields from the attributes of an object.
template <class Struct>
void read(Struct& to, pybind11::handle from) {
  const auto read_one = [&]<class U>(const Field<Struct, U>& f) {
    to.*f.member = from.attr(f.name).template cast<U>();
  };
  std::apply([&](const auto&... f) { (read_one(f), ...); }, kFieldsOf<Struct>);
}

// Returns a member as Python has it; an enumerator becomes its name.
template <class T>
pybind11::object to_python(const T& value) {
  if constexpr (std::is_enum_v<T>)
    return pybind11::str(name_of(value));
  else
    return pybind11::cast(value);
}

template <class Struct>
pybind11::dict dict_of(const Struct& from) {
  pybind11::dict all;
  std::apply([&](const auto&... f) { ((all[f.name] = to_python(from.*f.member)), ...); },
             kFieldsOf<Struct>);
  return all;
}

template <class... F>
pybind11::tuple names_of(const std::tuple<F...>& fields) {
  return std::apply([](const auto&... f) { return pybind11::make_tuple(f.name...); }, fields);
}

}  // namespace xeflash
