#include "host/attention/request.hpp"

#include <array>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>

#include "host/arrays/read_value.hpp"

namespace xeflash {
namespace {

void read(Layout& to, const Value& value) {
  int64_t layout;
  read(layout, value);
  to = static_cast<Layout>(layout);
}

// Returns the name that attention() has for an argument, or "" if it is the same.
constexpr const char* name_of_attention(const char* name) {
  constexpr std::pair<std::string_view, const char*> kOthers[] = {
      {"q", "query"},     {"k", "key"},           {"v", "value"}, {"softmax_scale", "scale"},
      {"s_aux", "sinks"}, {"causal", "is_causal"}};
  for (const auto& [own, other] : kOthers)
    if (own == name) return other;
  return "";
}

struct Argument {
  const char* name;
  const char* name_of_attention;
  void (*set)(FwdRequest&, const Value&);
};

constexpr size_t kFirstOfPart = std::tuple_size_v<decltype(kFieldsOf<FwdRequest>)>;
constexpr size_t kFirstOfCache = kFirstOfPart + std::tuple_size_v<decltype(kFieldsOf<PartRequest>)>;

template <size_t I>
void set(FwdRequest& r, const Value& value) {
  if constexpr (I < kFirstOfPart) {
    read(r.*std::get<I>(kFieldsOf<FwdRequest>).member, value);
  } else if constexpr (I < kFirstOfCache) {
    read(r.part.*std::get<I - kFirstOfPart>(kFieldsOf<PartRequest>).member, value);
  } else {
    constexpr auto member = std::get<I - kFirstOfCache>(kFieldsOf<CacheRequest>).member;
    if constexpr (std::is_same_v<decltype(member), py::object CacheRequest::* const>) {
      if (member == &CacheRequest::k_cache || member == &CacheRequest::v_cache)
        r.cache.given = true;
    }
    read(r.cache.*member, value);
  }
}

constexpr auto kFields =
    std::tuple_cat(kFieldsOf<FwdRequest>, kFieldsOf<PartRequest>, kFieldsOf<CacheRequest>);
constexpr auto kArguments = []<size_t... I>(std::index_sequence<I...>) {
  return std::array{
      Argument{std::get<I>(kFields).name, name_of_attention(std::get<I>(kFields).name), set<I>}...};
}(std::make_index_sequence<std::tuple_size_v<decltype(kFields)>>{});

constexpr size_t kFirstOfPacked = [] {
  size_t at = 0;
  while (std::string_view(kArguments[at].name) != "cu_seqlens_q") ++at;
  return at;
}();

// The arguments by their interned names, which calls in Python's source pass.
const Argument* find(PyObject* name) {
  static const auto* by_name = [] {
    auto* all = new std::unordered_map<PyObject*, const Argument*>;
    for (const Argument& a : kArguments) {
      all->emplace(PyUnicode_InternFromString(a.name), &a);
      if (*a.name_of_attention) all->emplace(PyUnicode_InternFromString(a.name_of_attention), &a);
    }
    return all;
  }();
  if (const auto found = by_name->find(name); found != by_name->end()) return found->second;
  for (const Argument& a : kArguments) {
    if (PyUnicode_CompareWithASCIIString(name, a.name) == 0) return &a;
    if (*a.name_of_attention && PyUnicode_CompareWithASCIIString(name, a.name_of_attention) == 0)
      return &a;
  }
  throw py::type_error("forward() has no argument " + py::repr(name).cast<std::string>());
}

[[noreturn]] void refuse_words(const FwdRequest& r) {
  throw py::type_error(r.function + ": words must be None or a dict of str to str, got " +
                       py::repr(r.words).cast<std::string>().substr(0, 60));
}

std::string word_of(const void* call, const char* name) {
  const FwdRequest& r = *static_cast<const FwdRequest*>(call);
  if (!r.words.is_none()) {
    if (!PyDict_Check(r.words.ptr())) refuse_words(r);
    if (PyObject* own = PyDict_GetItemString(r.words.ptr(), name)) {
      if (!PyUnicode_Check(own)) refuse_words(r);
      return py::handle(own).cast<std::string>();
    }
  }
  if (r.layout == Layout::kBSHD) return name;
  const std::string_view given = name;  // k and v may be a cache in these layouts
  const std::string_view word = given == "k_cache" ? "k" : given == "v_cache" ? "v" : given;
  if (r.layout == Layout::kBHSD) {
    for (const Argument& a : kArguments)
      if (*a.name_of_attention && a.name == word) return a.name_of_attention;
  }
  return std::string(word);
}

}  // namespace

Checker checker_of(const FwdRequest& r) { return {r.function, &r, word_of}; }

FwdRequest read_arguments(const py::kwargs& given) {
  FwdRequest r;
  const Checker check = checker_of(r);
  static PyObject* const message_names[] = {PyUnicode_InternFromString("function"),
                                            PyUnicode_InternFromString("words"),
                                            PyUnicode_InternFromString("layout")};
  for (PyObject* name : message_names) {  // first, as those of the others depend on them
    PyObject* x = PyDict_GetItem(given.ptr(), name);
    if (!x) continue;
    const Argument& argument = *find(name);
    argument.set(r, {x, argument.name, check});
  }
  if (!r.words.is_none() && !PyDict_Check(r.words.ptr())) refuse_words(r);
  const char *cache_argument = nullptr,
             *packed_argument = nullptr;  // one that only such calls have
  PyObject *name, *object;
  for (Py_ssize_t at = 0; PyDict_Next(given.ptr(), &at, &name, &object);) {
    const Argument* argument = find(name);
    argument->set(r, {object, argument->name, check});
    if (object == Py_None) continue;
    const size_t place = argument - kArguments.data();
    if (place >= kFirstOfCache) cache_argument = argument->name;
    if (place >= kFirstOfPacked && place < kFirstOfPart) packed_argument = argument->name;
  }
  if (cache_argument && !r.cache.given)
    check.refuse(cache_argument, "must come with a cache of keys, got one without");
  if (packed_argument && r.layout != Layout::kTHD)
    check.refuse(packed_argument, "must come with packed sequences, got one without");
  if (!r.attn_mask.is_none() && r.layout != Layout::kBHSD)
    check.refuse("attn_mask",
                 "must come with the layout (batch, heads, sequence, dim), got one without");
  if (r.cache.cache_length != -1 && !r.cache.cache_seqlens.is_none())
    check.refuse("cache_length", "must not be given with " + check.word("cache_seqlens") +
                                     ", got " + std::to_string(r.cache.cache_length));
  return r;
}

py::tuple call_fields() {
  const FwdRequest r;
  py::list all;
  list_fields(all, r, name_of_attention);
  list_fields(all, r.part, name_of_attention);
  list_fields(all, r.cache, name_of_attention);
  return py::tuple(all);
}

}  // namespace xeflash
