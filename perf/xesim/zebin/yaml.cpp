// Recursive descent over the lines of the text; the indentation decides what belongs to what.
#include "zebin/yaml.hpp"

#include "base/fault.hpp"

namespace xesim {
namespace {

constexpr int kMaxDepth = 32;  // .ze_info needs 6

struct Line {
  int number;
  size_t indent;
  std::string_view text;  // without indentation, comment and trailing blanks
};

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

std::string_view trim(std::string_view s) {
  while (!s.empty() && is_blank(s.front())) s.remove_prefix(1);
  while (!s.empty() && is_blank(s.back())) s.remove_suffix(1);
  return s;
}

// Position after the quoted scalar that starts at s[0], npos if it does not end.
size_t skip_quoted(std::string_view s) {
  const char quote = s[0];
  for (size_t i = 1; i < s.size(); ++i) {
    if (quote == '"' && s[i] == '\\') {
      ++i;
    } else if (s[i] == quote) {
      if (quote == '"' || i + 1 >= s.size() || s[i + 1] != '\'') return i + 1;
      ++i;  // '' inside single quotes
    }
  }
  return std::string_view::npos;
}

bool starts_token(std::string_view s, size_t i) {
  return i == 0 || is_blank(s[i - 1]) || s[i - 1] == '[' || s[i - 1] == ',';
}

std::string_view without_comment(std::string_view s) {
  for (size_t i = 0; i < s.size(); ++i) {
    if ((s[i] == '"' || s[i] == '\'') && starts_token(s, i)) {
      const size_t end = skip_quoted(s.substr(i));
      if (end == std::string_view::npos) return s;
      i += end - 1;
    } else if (s[i] == '#' && (i == 0 || is_blank(s[i - 1]))) {
      return s.substr(0, i);
    }
  }
  return s;
}

class Parser {
 public:
  explicit Parser(std::string_view text) { split(text); }

  YamlNode document() {
    if (lines_.empty()) return {};
    YamlNode root = block(0, lines_[0].indent);
    if (next_ < lines_.size()) bad(lines_[next_].number, "text after the end of the document");
    return root;
  }

 private:
  [[noreturn]] static void bad(int line, const char* what) {
    fail(".ze_info, line %d: %s", line, what);
  }

  void split(std::string_view text) {
    int number = 0;
    bool ended = false;
    while (!text.empty()) {
      const size_t end = text.find('\n');
      std::string_view raw = text.substr(0, end);
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
      ++number;
      size_t indent = 0;
      while (indent < raw.size() && raw[indent] == ' ') ++indent;
      if (indent < raw.size() && raw[indent] == '\t') bad(number, "a tab as indentation");
      const std::string_view content = trim(without_comment(raw.substr(indent)));
      if (content.empty()) continue;
      if (content.find('\0') != std::string_view::npos) bad(number, "a zero byte");
      if (indent == 0 && content == "---") {
        if (!lines_.empty()) bad(number, "a second document");
        continue;
      }
      if (indent == 0 && content == "...") {
        ended = true;
        continue;
      }
      if (content[0] == '%') bad(number, "a directive");
      if (ended) bad(number, "a second document");
      lines_.push_back({number, indent, content});
    }
  }

  static bool is_item(const Line& line) {
    return line.text[0] == '-' && (line.text.size() == 1 || line.text[1] == ' ');
  }

  YamlNode block(int depth, size_t indent) {
    const Line& line = lines_[next_];
    if (depth > kMaxDepth) bad(line.number, "nested too deeply");
    if (is_item(line)) return list(depth, indent);
    if (key_end(line.text) != std::string_view::npos) return map(depth, indent);
    YamlNode node = value(line.text, line.number);
    return node;
  }

  YamlNode list(int depth, size_t indent) {
    YamlNode node;
    node.kind = YamlNode::Kind::kList;
    node.line = lines_[next_].number;
    while (next_ < lines_.size() && lines_[next_].indent == indent && is_item(lines_[next_])) {
      Line& line = lines_[next_];
      const std::string_view rest = trim(line.text.substr(1));
      if (rest.empty()) {
        ++next_;
        node.items.push_back(nested(depth, indent, false));
        continue;
      }
      // "- key: value": the rest of the line is the first line of a block that starts in its
      // column.
      line.indent += line.text.size() - rest.size();
      line.text = rest;
      node.items.push_back(block(depth + 1, line.indent));
    }
    if (next_ < lines_.size() && lines_[next_].indent > indent) {
      bad(lines_[next_].number, "indentation that fits nothing");
    }
    return node;
  }

  // What stands below a "key:" or "-" with nothing behind it.
  YamlNode nested(int depth, size_t indent, bool under_key) {
    YamlNode null;
    if (next_ >= lines_.size()) return null;
    const Line& line = lines_[next_];
    if (line.indent > indent) return block(depth + 1, line.indent);
    if (under_key && line.indent == indent && is_item(line)) return list(depth + 1, indent);
    return null;
  }

  // Position of the ':' that ends a key at the start of s.
  static size_t key_end(std::string_view s) {
    if (s[0] == '[' || s[0] == '{') return std::string_view::npos;
    size_t i = 0;
    if (s[0] == '"' || s[0] == '\'') {
      i = skip_quoted(s);
      if (i == std::string_view::npos || i >= s.size() || s[i] != ':') {
        return std::string_view::npos;
      }
      return i + 1 == s.size() || is_blank(s[i + 1]) ? i : std::string_view::npos;
    }
    for (; i < s.size(); ++i) {
      if (s[i] == ':' && (i + 1 == s.size() || is_blank(s[i + 1]))) return i;
    }
    return std::string_view::npos;
  }

  YamlNode map(int depth, size_t indent) {
    YamlNode node;
    node.kind = YamlNode::Kind::kMap;
    node.line = lines_[next_].number;
    while (next_ < lines_.size() && lines_[next_].indent == indent) {
      const Line line = lines_[next_];
      const size_t end = is_item(line) ? std::string_view::npos : key_end(line.text);
      if (end == std::string_view::npos) bad(line.number, "expected \"key: value\"");
      const YamlNode key = scalar(trim(line.text.substr(0, end)), line.number);
      for (const auto& entry : node.entries) {
        if (entry.first == key.text) bad(line.number, "a key for the second time");
      }
      if (node.entries.size() >= 256) bad(line.number, "more than 256 keys");
      const std::string_view rest = trim(line.text.substr(end + 1));
      YamlNode child;
      if (rest.empty()) {
        ++next_;
        child = nested(depth, indent, true);
      } else {
        child = value(rest, line.number);
      }
      child.line = line.number;
      node.entries.emplace_back(key.text, std::move(child));
    }
    if (next_ < lines_.size() && lines_[next_].indent > indent) {
      bad(lines_[next_].number, "indentation that fits nothing");
    }
    return node;
  }

  // A scalar or a flow list that starts on the current line; moves to the line behind it.
  YamlNode value(std::string_view text, int number) {
    ++next_;
    if (text[0] == '{') {
      if (text != "{}") bad(number, "a flow map");
      YamlNode node;
      node.kind = YamlNode::Kind::kMap;
      return node;
    }
    if (text[0] != '[') return scalar(text, number);
    std::string joined(text);
    while (text.find(']') ==
           std::string_view::npos) {  // lists are wrapped at the writer's line length
      if (next_ >= lines_.size()) bad(number, "a flow list without its end");
      text = lines_[next_++].text;
      joined += ' ';
      joined += text;
    }
    return flow_list(joined, number);
  }

  static YamlNode flow_list(std::string_view s, int number) {
    YamlNode node;
    node.kind = YamlNode::Kind::kList;
    node.line = number;
    s.remove_prefix(1);
    for (s = trim(s); !s.empty() && s[0] != ']'; s = trim(s)) {
      size_t end;
      if (s[0] == '"' || s[0] == '\'') {
        end = skip_quoted(s);
        if (end == std::string_view::npos) bad(number, "a quote without its end");
      } else {
        end = s.find_first_of(",]");
        if (end == std::string_view::npos) bad(number, "a flow list without its end");
      }
      const std::string_view item = trim(s.substr(0, end));
      if (item.empty()) bad(number, "an empty item in a flow list");
      if (item[0] == '[' || item[0] == '{') bad(number, "nested flow collections");
      node.items.push_back(scalar(item, number));
      s = trim(s.substr(end));
      if (s.empty() || (s[0] != ',' && s[0] != ']')) bad(number, "a flow list without its end");
      if (s[0] == ',') s.remove_prefix(1);
    }
    if (s != "]") bad(number, "text behind a flow list");
    return node;
  }

  static YamlNode scalar(std::string_view s, int number) {
    YamlNode node;
    node.kind = YamlNode::Kind::kScalar;
    node.line = number;
    if (s.empty()) bad(number, "an empty key");
    if (s[0] != '"' && s[0] != '\'') {
      if (std::string_view("&*!|>@`%{}[],").find(s[0]) != std::string_view::npos) {
        bad(number, "YAML beyond the subset of .ze_info");
      }
      if (s == "~" || s == "null") node.kind = YamlNode::Kind::kNull;
      node.text = s;
      return node;
    }
    if (skip_quoted(s) != s.size()) bad(number, "text behind a quoted scalar");
    for (size_t i = 1; i + 1 < s.size(); ++i) {
      if (s[0] == '\'' && s[i] == '\'') {
        ++i;
      } else if (s[0] == '"' && s[i] == '\\') {
        node.text += unescape(s, i, number);
        continue;
      }
      node.text += s[i];
    }
    return node;
  }

  static char unescape(std::string_view s, size_t& i, int number) {
    ++i;
    switch (s[i]) {
      case '\\':
      case '"':
      case '/':
        return s[i];
      case 'n':
        return '\n';
      case 't':
        return '\t';
      case '0':
        return '\0';
      case 'x': {
        int code = 0;
        for (int digit = 0; digit < 2; ++digit) {
          const char c = ++i < s.size() ? s[i] : '"';
          const size_t at = std::string_view("0123456789abcdefABCDEF").find(c);
          if (at == std::string_view::npos) bad(number, "a bad \\x escape");
          code = code * 16 + static_cast<int>(at < 16 ? at : at - 6);
        }
        return static_cast<char>(code);
      }
      default:
        bad(number, "an unknown escape");
    }
  }

  std::vector<Line> lines_;
  size_t next_ = 0;
};

}  // namespace

const YamlNode* YamlNode::find(std::string_view key) const {
  for (const auto& entry : entries) {
    if (entry.first == key) return &entry.second;
  }
  return nullptr;
}

YamlNode parse_yaml(std::string_view text) { return Parser(text).document(); }

}  // namespace xesim
