#include "observe/record.hpp"

#include <deque>
#include <mutex>
#include <type_traits>

#include "base/json.hpp"

namespace xesim {
namespace {

constexpr size_t kKept = 4096;
std::mutex g_mutex;
std::deque<LaunchRecord>& kept() {
  static std::deque<LaunchRecord> records;
  return records;
}

std::string json_of(const std::string& text) { return quoted(text); }
template <class T>
  requires std::is_arithmetic_v<T>
std::string json_of(T value) {
  return std::to_string(value);
}
template <class T, size_t n>
std::string json_of(const std::array<T, n>& values) {
  JsonList list;
  for (const T value : values) list.item(std::to_string(value));
  return list.done();
}

std::string json_of(const LaunchRecord::Listing& listing) {
  JsonList list;
  for (const Executed& one : listing) {
    JsonList fields;
    fields.item(std::to_string(one.address)).item(std::to_string(one.count));
    fields.item(quoted(one.inst_class)).item(quoted(one.text));
    list.item(fields.done());
  }
  return list.done();
}

}  // namespace

LaunchRecord& LaunchRecord::operator+=(const LaunchRecord& other) {
  const auto add = [](auto& into, const auto& from) {
    if constexpr (std::is_same_v<decltype(into), uint64_t&>) into += from;
  };
#define FIELD(type, name) add(name, other.name);
#include "observe/record_fields.inc"
#undef FIELD
  return *this;
}

std::string to_json(const LaunchRecord& record) {
  JsonObject json;
#define FIELD(type, name) json.raw(#name, json_of(record.name));
#include "observe/record_fields.inc"
#undef FIELD
  return json.done();
}

void keep_record(LaunchRecord record) {
  const std::lock_guard lock(g_mutex);
  kept().push_back(std::move(record));
  if (kept().size() > kKept) kept().pop_front();
}

std::vector<LaunchRecord> last_launches() {
  const std::lock_guard lock(g_mutex);
  return {kept().begin(), kept().end()};
}

void clear_launches() {
  const std::lock_guard lock(g_mutex);
  kept().clear();
}

}  // namespace xesim
