// Memory as the host side of the driver reaches it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace xesim::driver {

// Where the simulator's host finds `bytes` bytes at a pointer of the program: inside an allocation
// of the simulator, or ordinary host memory. Throws Fault, with `what` as its subject, if the
// former does not hold them.
uint8_t* host_view(const void* pointer, size_t bytes, const char* what);

// From now on a host access to device memory is told on stderr before the process dies of it.
void explain_host_accesses();

}  // namespace xesim::driver
