// What a kernel finds in its registers and in the indirect data when it starts.
#pragma once

#include "launch/launch.hpp"
#include "machine/thread.hpp"

namespace xesim {

// Where the indirect data begins in its address space; threads find it in r0.0.
constexpr uint32_t kIndirectBase = 0x10000;

struct Payload {
  std::vector<uint8_t> inline_data;      // r1, where the compiler wants it there
  Allocation* private_memory = nullptr;  // released with the payload
  ~Payload();
};

// Fills launch.indirect_data, surfaces and slm_bytes: the cross-thread block, then one block per
// thread with its local ids. Throws Fault if arguments are missing or of the wrong size.
std::unique_ptr<Payload> make_payload(const LaunchDesc& desc, const Kernel& kernel, Launch& launch,
                                      int resident_threads);

// Puts a thread to the start of the kernel: r0, r1, masks; every other register undefined.
void start_thread(Thread& thread, const Kernel& kernel, const LaunchDesc& desc,
                  const Payload& payload, int resident);

}  // namespace xesim
