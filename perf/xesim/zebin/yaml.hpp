// The YAML that compilers write into .ze_info: block maps and lists, flow lists, plain and quoted
// scalars.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace xesim {

struct YamlNode {
  enum class Kind : uint8_t { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  int line = 0;      // 1-based, for messages
  std::string text;  // of a scalar
  std::vector<YamlNode> items;
  std::vector<std::pair<std::string, YamlNode>> entries;

  const YamlNode* find(std::string_view key) const;
};

// Throws Fault, naming the line, for anything outside the subset.
YamlNode parse_yaml(std::string_view text);

}  // namespace xesim
