// Structs whose members Python knows by the same names. Each lists them once, as a tuple of fields.
#pragma once

#include <pybind11/pybind11.h>

#include <tuple>
#include <utility>

namespace xeflash {

template <class Struct, class T>
struct Field {
  const char* name;
  T Struct::* member;
  const char* other_name = nullptr;  // what attention() calls it
};

struct Anything {
  template <class T>
  operator T() const;
};

// Whether the list has as many fields as the struct has members, but for `others`.
template <size_t others = 0, class Struct, class... T>
consteval bool is_complete(const std::tuple<Field<Struct, T>...>&) {
  const auto takes = []<size_t... I>(std::index_sequence<I...>) {
    return requires { Struct{(static_cast<void>(I), Anything{})...}; };
  };
  return takes(std::make_index_sequence<sizeof...(T) + others>{}) &&
         !takes(std::make_index_sequence<sizeof...(T) + others + 1>{});
}

// From the attributes of an object.
template <class Struct, class... T>
void read(Struct& to, pybind11::handle from, const std::tuple<Field<Struct, T>...>& fields) {
  const auto read_one = [&]<class U>(const Field<Struct, U>& f) {
    to.*f.member = from.attr(f.name).template cast<U>();
  };
  std::apply([&](const auto&... f) { (read_one(f), ...); }, fields);
}

template <class... F>
pybind11::tuple names_of(const std::tuple<F...>& fields) {
  return std::apply([](const auto&... f) { return pybind11::make_tuple(f.name...); }, fields);
}

}  // namespace xeflash
