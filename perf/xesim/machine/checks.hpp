// What a run looks for besides results. XEFLASH_SIM_CHECK: "all" (default), "none", or a comma list
// of the names below; "seed=N", "dpas=exact|stepwise", "denormals=keep|flush" choose variants;
// "caches=l2|l1+l2", or "caches=l2:24" for an L2 of 24 MiB, counts what reaches memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace xesim {

struct Checks {
  bool bounds = true;  // "bounds": accesses inside one live allocation (always on: it is also the
                       // address map)
  bool uninitialised = true;  // "uninit": undefined register bytes that reach an address, a branch,
                              // a message, memory
  bool host = true;           // "host": the host cannot touch device memory
  bool deferred = true;       // "deferred": commands run only when the host waits
  bool slm_races = true;      // "slm-races"
  bool global_races = true;   // "global-races"
  bool interleave =
      true;             // "interleave": seeded random order of groups and of the threads of a group
  bool block2d = true;  // "block2d": the hardware's rules for 2D block messages
  bool math = true;  // "math": results of math instructions moved within their stated error, seeded
  bool spills = false;  // "spills": kernels whose values do not fit in registers; not one of "all",
                        // as it says nothing about what they do
  bool listing = false;  // "listing": records say how often each instruction ran; not one of "all"
  enum class Dpas : uint8_t { kExact, kStepwise } dpas = Dpas::kExact;
  // What the compiler does with denormals in kernels that do not say it: newer ones keep them,
  // those of 2024 flush them to zero.
  enum class Denormals : uint8_t { kKeep, kFlush } denormals = Denormals::kKeep;
  // Which caches stand between the threads and memory (observe/caches.hpp). Groups that fit on a
  // device then run at the same time.
  enum class Caches : uint8_t { kOff, kL2, kL1AndL2 } caches = Caches::kOff;
  uint64_t l2_bytes = 0;  // 0: the device's
  uint64_t seed = 0;
};

// Parses the variable's text; throws Fault naming the word that is not understood.
Checks parse_checks(std::string_view text);
std::string to_string(const Checks& checks);

// The checks of launches from now on. Initially parse_checks(getenv("XEFLASH_SIM_CHECK")).
Checks& current_checks();

}  // namespace xesim
