// Counts what reaches memory through an L2 of the device's size, and an L1 of each Xe-core where it
// is asked for. README.md says what is modelled.
//
// L2 keeps its lines from launch to launch, as a kernel may find there what the one before it has
// written. An L1 begins empty: it is not coherent, and launches invalidate it.
#pragma once

#include <vector>

#include "machine/checks.hpp"
#include "machine/chip.hpp"
#include "machine/observer.hpp"
#include "observe/cache.hpp"

namespace xesim {

class Caches : public Observer {
 public:
  // `l1_bytes` of an Xe-core; 0: there is none.
  Caches(const Chip& chip, const Checks& checks, uint64_t l1_bytes);
  void on_message(const Thread& thread, const MessageEvent& event) override;
  void report(LaunchRecord& record) override;

 private:
  // Of one line; a bit of `bytes` for each byte that is touched.
  void touch(Cache* l1, uint64_t number, Access access, uint64_t bytes);

  Cache& l2_;
  std::vector<Cache> l1_;  // per Xe-core
  const uint64_t base_;
  uint64_t asked_ = 0, read_ = 0, written_ = 0, lost_ = 0;  // lines
};

// Empties the L2 of every device; nothing is written back. Not while a launch runs.
void empty_l2();

}  // namespace xesim
