#include "driver/host_access.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "base/fault.hpp"
#include "machine/memory.hpp"

namespace xesim::driver {
namespace {

struct sigaction previous;

void on_segv(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uint64_t>(info->si_addr);
  // Hands over to whoever was there before: the access happens again after the return.
  sigaction(SIGSEGV, &previous, nullptr);
  // The process is about to die; that explain() allocates is a risk worth taking.
  if (info->si_code <= 0 || !Memory::instance().owns(address)) return;
  char text[512];
  const int n = std::snprintf(
      text, sizeof text,
      "xesim: the host touched simulated memory that it cannot reach: address 0x%llx %s\n",
      static_cast<unsigned long long>(address), Memory::instance().explain(address, 1).c_str());
  if (write(STDERR_FILENO, text, std::min<size_t>(static_cast<size_t>(n), sizeof text - 1)) < 0)
    return;
}

}  // namespace

uint8_t* host_view(const void* pointer, size_t bytes, const char* what) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  Memory& memory = Memory::instance();
  if (!memory.owns(address)) return static_cast<uint8_t*>(const_cast<void*>(pointer));
  const Allocation* a = memory.find(address, bytes);
  if (a == nullptr) {
    fail("%s: the %zu bytes at 0x%llx: the range %s", what, bytes,
         static_cast<unsigned long long>(address), memory.explain(address, bytes).c_str());
  }
  return a->data + (address - a->address);
}

void explain_host_accesses() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action{};
    action.sa_sigaction = on_segv;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &previous);
  });
}

}  // namespace xesim::driver
