// What Python asks the library in its own process: records of launches, the last fault, the checks.
// Strings that are returned stay valid until the thread's next call of the same function.
#include <string>

#include "capi/capi.hpp"
#include "driver/objects.hpp"
#include "driver/scheduler.hpp"
#include "launch/launch.hpp"
#include "machine/checks.hpp"
#include "observe/record.hpp"

namespace {

template <class Text>
const char* kept(Text text) noexcept {
  static thread_local std::string result;
  try {
    result = text();
  } catch (...) {
    result.clear();
  }
  return result.c_str();
}

}  // namespace

// A JSON array, oldest first.
XESIM_API const char* xesim_last_launches() {
  return kept([] {
    std::string text = "[";
    for (const xesim::LaunchRecord& record : xesim::last_launches()) {
      if (text.size() > 1) text += ",";
      text += to_json(record);
    }
    return text + "]";
  });
}

XESIM_API void xesim_clear_launches() {
  try {
    xesim::clear_launches();
  } catch (...) {
  }
}

// Forgets what L2 caches hold, after the commands that wait have run.
XESIM_API void xesim_clear_caches() {
  try {
    xesim::driver::Scheduler::instance().run_all();
    xesim::clear_caches();
  } catch (...) {
  }
}

// Empty if there was none.
XESIM_API const char* xesim_last_fault() {
  return kept([] { return xesim::driver::last_report(); });
}

XESIM_API void xesim_clear_fault() { xesim::driver::clear_report(); }

// Empty, or what is wrong with the text.
XESIM_API const char* xesim_set_check(const char* text) {
  return kept([=]() -> std::string {
    try {
      const xesim::Checks checks = xesim::parse_checks(text == nullptr ? "" : text);
      // Commands that wait under the old checks run under them.
      xesim::driver::Scheduler::instance().run_all();
      xesim::driver::Scheduler::instance().exclusively([&] { xesim::current_checks() = checks; });
    } catch (const std::exception& error) {
      return error.what();
    }
    return {};
  });
}

XESIM_API const char* xesim_get_check() {
  return kept([] { return to_string(xesim::current_checks()); });
}
