// Writes JSON: objects and lists of numbers, strings and further JSON.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace xesim {

// Bytes outside of printable ASCII are escaped as Latin-1: names stay readable, the text stays
// JSON.
inline std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto code = static_cast<uint8_t>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (code < 0x20 || code >= 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", code);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + '"';
}

class JsonObject {
 public:
  JsonObject& raw(const char* key, std::string_view json) {
    if (text_.size() > 1) text_ += ',';
    text_ += quoted(key);
    text_ += ':';
    text_ += json;
    return *this;
  }
  JsonObject& number(const char* key, uint64_t value) { return raw(key, std::to_string(value)); }
  JsonObject& number(const char* key, double value) { return raw(key, std::to_string(value)); }
  JsonObject& string(const char* key, std::string_view value) { return raw(key, quoted(value)); }
  std::string done() const { return text_ + '}'; }

 private:
  std::string text_ = "{";
};

class JsonList {
 public:
  JsonList& item(std::string_view json) {
    if (text_.size() > 1) text_ += ',';
    text_ += json;
    return *this;
  }
  std::string done() const { return text_ + ']'; }

 private:
  std::string text_ = "[";
};

}  // namespace xesim
