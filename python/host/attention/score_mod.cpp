#include "host/attention/score_mod.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <deque>
#include <limits>
#include <mutex>
#include <unordered_map>

namespace xeflash {
namespace {

// The sources; the id of a source is its index plus 1. A deque never moves its elements.
std::deque<ScoreModSource>& sources() {
  static auto& all = *new std::deque<ScoreModSource>;
  return all;
}
std::mutex sources_mutex;

ScoreModId intern(ScoreModSource source) {
  std::string key = source.text;
  for (const auto& c : source.captures)
    key += '\0' + c.name + '\0' + c.type + static_cast<char>(c.rank);
  static auto& ids = *new std::unordered_map<std::string, ScoreModId>;
  std::lock_guard<std::mutex> lock(sources_mutex);
  if (const auto it = ids.find(key); it != ids.end()) return it->second;
  if (sources().size() == std::numeric_limits<uint16_t>::max())
    throw std::runtime_error("xeflash: more than 65535 different score_mod in a process");
  sources().push_back(std::move(source));
  return ids[key] = static_cast<ScoreModId>(sources().size());
}

// Checks that a kernel can index an array: 32 bits must be enough for any element.
CapturedArray captured_array(const Array& a, const char* name, const Checker& check) {
  XF_REQUIRE(check, a.ndim <= kMaxCapturedRank, name,
             "must have at most " + std::to_string(kMaxCapturedRank) + " dimensions",
             std::to_string(a.ndim), a);
  CapturedArray c{};
  c.data = a.data;
  int64_t span = 1;
  for (int i = 0; i < a.ndim; ++i) {
    XF_REQUIRE(check, a.shape[i] > 0, name, "must not be empty", a.describe_shape(), a);
    const int64_t stride = a.shape[i] > 1 ? a.strides[i] : 0;
    XF_REQUIRE(check, stride >= 0, name, "must not have negative strides", std::to_string(stride),
               a);
    span += (a.shape[i] - 1) * stride;
    XF_REQUIRE(check, span * size_of(a.dtype) <= std::numeric_limits<int32_t>::max(), name,
               "must span less than 2 GiB", std::to_string(span) + " elements", a);
    c.stride[i] = static_cast<int32_t>(stride);
    c.size[i] = static_cast<int32_t>(a.shape[i]);
  }
  return c;
}

bool has_word(const std::string& text, const std::string& word) {
  const auto is_of_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_of_word(text[at - 1])) && (end == text.size() || !is_of_word(text[end])))
      return true;
  }
  return false;
}

}  // namespace

ScoreModCall read_score_mod(const py::object& score_mod, const Array& q, const Checker& check) {
  ScoreModCall call;
  if (score_mod.is_none()) return call;
  const auto pair = score_mod.cast<py::tuple>();
  ScoreModSource source{pair[0].cast<std::string>(), {}};
  int numbers = 0;
  for (const auto& [key, value] : pair[1].cast<py::dict>()) {
    const auto name = key.cast<std::string>();
    if (py::isinstance<py::float_>(value) || py::isinstance<py::int_>(value)) {
      if (numbers == kMaxCapturedNumbers)
        check.refuse("captures must hold at most " + std::to_string(kMaxCapturedNumbers) +
                     " numbers, got more");
      const bool real = py::isinstance<py::float_>(value);
      auto& number = call.captures.numbers[numbers++];
      if (real) {
        number.real = value.cast<float>();
        if (std::isinf(number.real) && !std::isinf(value.cast<double>()))
          check.refuse("captures[\"" + name + "\"] must be finite in float32, got " +
                       py::str(value).cast<std::string>());
      } else {
        try {
          number.integer = value.cast<int32_t>();
        } catch (const py::cast_error&) {
          check.refuse("captures[\"" + name + "\"] must be below 2^31, got " +
                       py::str(value).cast<std::string>());
        }
      }
      source.captures.push_back({name, real ? "float" : "int", 0});
      continue;
    }
    if (call.arrays.size() == kMaxCapturedArrays)
      check.refuse("captures must hold at most " + std::to_string(kMaxCapturedArrays) +
                   " arrays, got more");
    const std::string label = "captures[\"" + name + "\"]";
    Array a = with_whole_strides(read_array(value, check, label.c_str()), check, label.c_str());
    constexpr DType kReadable[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI32,
                                   DType::kBool};
    XF_REQUIRE_DTYPE(check, std::ranges::find(kReadable, a.dtype) != std::end(kReadable), a,
                     label.c_str(), "must be float32, float16, bfloat16, int32 or bool");
    check.require_same_place(a, label.c_str(), q, "q");
    call.captures.arrays[call.arrays.size()] = captured_array(a, label.c_str(), check);
    source.captures.push_back({name, name_of(a.dtype), a.ndim});
    call.arrays.push_back(std::move(a));
    call.names.push_back(name);
  }
  call.reads_batch = has_word(source.text, "b");
  call.reads_head = has_word(source.text, "h");
  call.id = intern(std::move(source));
  return call;
}

const ScoreModSource& score_mod_source(ScoreModId id) {
  std::lock_guard<std::mutex> lock(sources_mutex);
  return sources().at(static_cast<size_t>(id) - 1);
}

}  // namespace xeflash
