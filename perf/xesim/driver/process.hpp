// Runs a program and waits for it.
#pragma once

#include <string>
#include <vector>

namespace xesim::driver {

struct Outcome {
  bool started = false;
  int status = -1;     // exit code, or -1 after a signal
  std::string output;  // stdout and stderr together; why it was not started
};

// Arguments are no shell's words. Runs in `folder`, where its output is kept as well.
Outcome run_program(const std::vector<std::string>& arguments, const std::string& folder);

// A folder of one's own that is removed with what is in it.
class ScratchFolder {
 public:
  ScratchFolder();  // throws Fault
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace xesim::driver
