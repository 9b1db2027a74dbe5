#include "driver/process.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/fault.hpp"

namespace xesim::driver {
namespace {

// The environment without what is preloaded into this process: the compiler may live on another
// libc.
std::vector<char*> child_environment() {
  std::vector<char*> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "LD_PRELOAD=", 11) != 0) kept.push_back(*entry);
  }
  kept.push_back(nullptr);
  return kept;
}

}  // namespace

Outcome run_program(const std::vector<std::string>& arguments, const std::string& folder) {
  const std::string log = folder + "/output.txt";
  // The shell only changes the folder, which posix_spawn itself can do from glibc 2.29 on.
  std::vector<std::string> command{"/bin/sh", "-c", "cd \"$0\" && exec \"$@\"", folder};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  std::vector<char*> environment = child_environment();
  Outcome outcome;
  pid_t child = 0;
  const int error =
      posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    outcome.output = command[0] + ": " + std::strerror(error);
    return outcome;
  }
  int status = 0;
  pid_t waited = 0;
  while ((waited = waitpid(child, &status, 0)) < 0 && errno == EINTR) {
  }
  // A program that ignores SIGCHLD leaves nothing to wait for; its output then tells.
  if (waited < 0)
    outcome.status = 0;
  else if (WIFEXITED(status))
    outcome.status = WEXITSTATUS(status);
  outcome.started = outcome.status != 126 && outcome.status != 127;  // as shells say
  std::ifstream file(log, std::ios::binary);
  outcome.output.assign(std::istreambuf_iterator<char>(file), {});
  if (waited > 0 && WIFSIGNALED(status)) {
    outcome.output += arguments[0] + ": ended by signal " + std::to_string(WTERMSIG(status)) + "\n";
  }
  return outcome;
}

ScratchFolder::ScratchFolder() {
  std::error_code ignored;
  std::filesystem::path base = std::filesystem::temp_directory_path(ignored);
  if (base.empty()) base = "/tmp";
  std::string pattern = (base / "xesim-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    fail("cannot make a folder like %s: %s", pattern.c_str(), std::strerror(errno));
  }
  path_ = pattern;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace xesim::driver
