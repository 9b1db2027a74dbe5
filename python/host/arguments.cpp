#include "arguments.hpp"

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "read_value.hpp"

namespace xeflash {
namespace {

void read(Layout& to, const Value& value) {
  int64_t layout;
  read(layout, value);
  to = static_cast<Layout>(layout);
}

struct Argument {
  const char* name;
  const char* name_of_attention;  // where it has another one
  void (*set)(FwdRequest&, const Value&);
};

constexpr size_t kFirstOfPart = std::tuple_size_v<decltype(kCallFields)>;
constexpr size_t kFirstOfCache = kFirstOfPart + std::tuple_size_v<decltype(kPartFields)>;

template <size_t I>
void set(FwdRequest& r, const Value& value) {
  if constexpr (I < kFirstOfPart) {
    read(r.*std::get<I>(kCallFields).member, value);
  } else if constexpr (I < kFirstOfCache) {
    read(r.part.*std::get<I - kFirstOfPart>(kPartFields).member, value);
  } else {
    constexpr auto member = std::get<I - kFirstOfCache>(kCacheFields).member;
    if constexpr (std::is_same_v<decltype(member), py::object CacheRequest::* const>) {
      if (member == &CacheRequest::k || member == &CacheRequest::v) r.cache.given = true;
    }
    read(r.cache.*member, value);
  }
}

constexpr auto kFields = std::tuple_cat(kCallFields, kPartFields, kCacheFields);
constexpr auto kArguments = []<size_t... I>(std::index_sequence<I...>) {
  return std::array{
      Argument{std::get<I>(kFields).name, std::get<I>(kFields).other_name, set<I>}...};
}(std::make_index_sequence<std::tuple_size_v<decltype(kFields)>>{});

constexpr size_t kFirstOfPacked = [] {
  size_t at = 0;
  while (std::string_view(kArguments[at].name) != "cu_seqlens_q") ++at;
  return at;
}();

// By the interned name, which is what a call in Python's source passes.
const Argument* find(PyObject* name) {
  static const auto* by_name = [] {
    auto* all = new std::unordered_map<PyObject*, const Argument*>;
    for (const Argument& a : kArguments) {
      all->emplace(PyUnicode_InternFromString(a.name), &a);
      if (a.name_of_attention) all->emplace(PyUnicode_InternFromString(a.name_of_attention), &a);
    }
    return all;
  }();
  if (const auto found = by_name->find(name); found != by_name->end()) return found->second;
  for (const Argument& a : kArguments) {
    const char* other = a.name_of_attention ? a.name_of_attention : a.name;
    if (PyUnicode_CompareWithASCIIString(name, a.name) == 0) return &a;
    if (PyUnicode_CompareWithASCIIString(name, other) == 0) return &a;
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
  const char *of_cache = nullptr, *of_packed = nullptr;  // one that only such calls have
  PyObject *name, *object;
  for (Py_ssize_t at = 0; PyDict_Next(given.ptr(), &at, &name, &object);) {
    const Argument* argument = find(name);
    const char* public_name =
        attention && argument->name_of_attention ? argument->name_of_attention : argument->name;
    argument->set(r, {object, public_name, r.function});
    if (object == Py_None) continue;
    const size_t place = argument - kArguments.data();
    if (place >= kFirstOfCache) of_cache = public_name;
    if (place >= kFirstOfPacked && place < kFirstOfPart) of_packed = public_name;
  }
  if (of_cache && !r.cache.given)
    throw py::value_error(r.function + ": " + of_cache +
                          " must come with a cache of keys, got one without");
  if (of_packed && r.layout != Layout::kTHD)
    throw py::value_error(r.function + ": " + of_packed +
                          " must come with packed sequences, got one without");
  if (!r.bias.is_none() && !attention)
    throw py::value_error(
        r.function +
        ": attn_mask must come with the layout (batch, heads, sequence, dim), got "
        "one without");
  if (r.cache.length != -1 && !r.cache.lengths.is_none())
    throw py::value_error(r.function + ": cache_length must not be given with cache_seqlens, got " +
                          std::to_string(r.cache.length));
  return r;
}

py::tuple call_fields() {
  const FwdRequest r;
  py::list all;
  list_fields(all, r, kCallFields);
  list_fields(all, r.part, kPartFields);
  list_fields(all, r.cache, kCacheFields);
  return py::tuple(all);
}

}  // namespace xeflash
