#include "machine/checks.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/fault.hpp"

namespace xesim {
namespace {

struct CheckName {
  std::string_view name;
  bool Checks::* member;
  bool in_all = true;
};
constexpr CheckName kNames[] = {
    {"bounds", &Checks::bounds},
    {"uninit", &Checks::uninitialised},
    {"host", &Checks::host},
    {"deferred", &Checks::deferred},
    {"slm-races", &Checks::slm_races},
    {"global-races", &Checks::global_races},
    {"interleave", &Checks::interleave},
    {"block2d", &Checks::block2d},
    {"math", &Checks::math},
    {"spills", &Checks::spills, false},
    {"listing", &Checks::listing, false},
};

void set_all(Checks& checks, bool value) {
  for (const CheckName& row : kNames) checks.*row.member = value && row.in_all;
  checks.bounds = true;  // the address map itself; it cannot be left out
}

std::string_view trimmed(std::string_view word) {
  const auto first = word.find_first_not_of(" \t"), last = word.find_last_not_of(" \t");
  return first == std::string_view::npos ? std::string_view{}
                                         : word.substr(first, last - first + 1);
}

// All of `text` as a decimal number.
bool parse_number(std::string_view text, uint64_t& value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc{} && result.ptr == text.data() + text.size();
}

// "off", "l2", "l1+l2:24".
bool parse_caches(std::string_view text, Checks& checks) {
  constexpr uint64_t kMostMiB = 1 << 20;
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view kind = text.substr(0, colon);
  uint64_t mib = 0;
  if (colon != text.size() &&
      (kind == "off" || !parse_number(text.substr(colon + 1), mib) || mib == 0 || mib > kMostMiB)) {
    return false;
  }
  checks.l2_bytes = mib << 20;
  checks.caches = kind == "l2"      ? Checks::Caches::kL2
                  : kind == "l1+l2" ? Checks::Caches::kL1AndL2
                                    : Checks::Caches::kOff;
  return kind == "off" || checks.caches != Checks::Caches::kOff;
}

[[noreturn]] void refuse(std::string_view word) {
  std::string known;
  for (const CheckName& row : kNames) known.append(row.name).append(", ");
  fail(
      "XEFLASH_SIM_CHECK: '%s' is not understood; known are all, none, %sseed=N, "
      "dpas=exact|stepwise, denormals=keep|flush, caches=off|l2|l1+l2 or caches=l2:MIB",
      std::string(word).c_str(), known.c_str());
}

}  // namespace

Checks parse_checks(std::string_view text) {
  Checks checks;
  bool named = false;  // the first name given replaces the default "all"
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view word = trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    if (word.empty()) continue;
    if (word == "all" || word == "none") {
      set_all(checks, word == "all");
      named = true;
      continue;
    }
    if (word.starts_with("seed=")) {
      if (!parse_number(word.substr(5), checks.seed)) refuse(word);
      continue;
    }
    if (word.starts_with("caches=")) {
      if (!parse_caches(word.substr(7), checks)) refuse(word);
      continue;
    }
    if (word == "dpas=exact" || word == "dpas=stepwise") {
      checks.dpas = word == "dpas=exact" ? Checks::Dpas::kExact : Checks::Dpas::kStepwise;
      continue;
    }
    if (word == "denormals=keep" || word == "denormals=flush") {
      checks.denormals =
          word == "denormals=keep" ? Checks::Denormals::kKeep : Checks::Denormals::kFlush;
      continue;
    }
    bool found = false;
    for (const CheckName& row : kNames) {
      if (word != row.name) continue;
      if (!named) set_all(checks, false);
      checks.*row.member = named = found = true;
    }
    if (!found) refuse(word);
  }
  return checks;
}

std::string to_string(const Checks& checks) {
  std::string text;
  for (const CheckName& row : kNames) {
    if (checks.*row.member) text.append(text.empty() ? "" : ",").append(row.name);
  }
  text += checks.dpas == Checks::Dpas::kExact ? ",dpas=exact" : ",dpas=stepwise";
  if (checks.denormals == Checks::Denormals::kFlush) text += ",denormals=flush";
  if (checks.caches != Checks::Caches::kOff) {
    text += checks.caches == Checks::Caches::kL2 ? ",caches=l2" : ",caches=l1+l2";
    if (checks.l2_bytes != 0) text += ":" + std::to_string(checks.l2_bytes >> 20);
  }
  return text + ",seed=" + std::to_string(checks.seed);
}

Checks& current_checks() {
  // A wrong variable must not end a process that only loads the library: it is told, and everything
  // is checked.
  static Checks checks = [] {
    const char* text = std::getenv("XEFLASH_SIM_CHECK");
    try {
      return parse_checks(text == nullptr ? "" : text);
    } catch (const Fault& fault) {
      std::fprintf(stderr, "xesim: %s\n", fault.what());
      return Checks{};
    }
  }();
  return checks;
}

}  // namespace xesim
