// What launches did; the process keeps the newest records.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "isa/inst_class.hpp"

namespace xesim {

// An instruction, and how often it ran.
struct Executed {
  uint32_t address;
  uint64_t count;
  const char* inst_class;
  std::string text;
};

struct LaunchRecord {
  using Listing = std::vector<Executed>;
  using Sizes = std::array<uint32_t, 3>;
  using Shares = std::array<double, kInstClasses>;
#define FIELD(type, name) type name{};
#include "observe/record_fields.inc"
#undef FIELD

  // Adds the counters of another.
  LaunchRecord& operator+=(const LaunchRecord& other);
};

void keep_record(LaunchRecord record);
// The records of this process since the last clear, oldest first; at most the newest 4096 are kept.
std::vector<LaunchRecord> last_launches();
void clear_launches();
std::string to_json(const LaunchRecord& record);

}  // namespace xesim
