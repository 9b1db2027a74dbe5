// Counts the distinct 64-byte lines of global memory that a launch reads and writes.
#pragma once

#include "machine/observer.hpp"
#include "observe/shadow.hpp"

namespace xesim {

class Lines : public Observer {
 public:
  explicit Lines(size_t workers) : read_(kBytesOfWord, workers), written_(kBytesOfWord, workers) {}
  void on_message(const Thread& thread, const MessageEvent& event) override;
  void report(LaunchRecord& record) override;

 private:
  static constexpr uint64_t kBytesOfWord = 64 * 64;  // a bit per line
  Shadow read_, written_;
};

}  // namespace xesim
