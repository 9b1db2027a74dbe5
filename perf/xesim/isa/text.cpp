#include "isa/text.hpp"

namespace xesim {
namespace {

constexpr std::string_view kFiles[] = {"none", "null", "r", "acc", "a",   "f",  "ce", "msg", "sp",
                                       "sr",   "cr",   "n", "ip",  "tdr", "tm", "fc", "dbg", "imm"};
constexpr std::string_view kConditions[] = {"",   "eq", "ne", "gt", "ge", "lt", "le", "?",
                                            "ov", "un", "?",  "?",  "?",  "?",  "?",  "eo"};
constexpr std::string_view kPredicates[] = {
    "",       "",       ".any",   ".all",   ".anyv",   ".allv",   ".any2h",  ".all2h",
    ".any4h", ".all4h", ".any8h", ".all8h", ".any16h", ".all16h", ".any32h", ".all32h"};
constexpr std::string_view kMath[] = {"?", "inv",  "log", "exp",  "sqt",  "rsqt", "sin",  "cos",
                                      "?", "fdiv", "pow", "idiv", "iqot", "irem", "invm", "rsqtm"};
constexpr std::string_view kSync[] = {"nop", "?", "allrd", "allwr", "?", "?",     "?",   "?",
                                      "?",   "?", "?",     "?",     "?", "fence", "bar", "host"};
constexpr std::string_view kSfids[] = {"null", "ugml", "smpl", "gtwy", "dc2", "rc",  "urb", "ts",
                                       "vme",  "dcro", "dc0",  "pixi", "dc1", "tgm", "slm", "ugm"};

}  // namespace

std::string_view file_name(File file) { return kFiles[static_cast<int>(file)]; }
std::string_view condition_name(Condition condition) {
  return kConditions[static_cast<int>(condition)];
}
std::string_view predicate_suffix(Predicate predicate) {
  return kPredicates[static_cast<int>(predicate)];
}
std::string_view math_name(MathFn function) { return kMath[static_cast<int>(function)]; }
std::string_view sync_name(SyncFn function) { return kSync[static_cast<int>(function)]; }
std::string_view sfid_name(Sfid sfid) { return kSfids[static_cast<int>(sfid)]; }

}  // namespace xesim
