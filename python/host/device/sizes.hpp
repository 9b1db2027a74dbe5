// The numbers of xeflash.tune by which calls are shared out over a device, and the few that layouts
// and messages dictate. No other size in these files is a choice.
#pragma once

#include "host/device/runtime.hpp"
#include "host/device/tune.hpp"

namespace xeflash {

// The build writes tune.hpp: Schedule and ProductSchedule have the members of tune/schedule.py,
// which explains them, and Algorithm the names of ALGORITHMS in tune/desc.py.
const Schedule& schedule_of(const Device& device);
const ProductSchedule& product_schedule_of(const Device& device);

constexpr int64_t divide_up(int64_t n, int64_t of) { return (n + of - 1) / of; }
constexpr int64_t whole(int64_t n, int64_t of) { return divide_up(n, of) * of; }

constexpr int64_t kLineBytes = 64;  // of a cache line, at which memory of a call begins
constexpr int64_t kLineFloats = kLineBytes / 4;
constexpr int64_t kMaxSplits = 128;     // the most that a call may ask for, or that are tried
constexpr int64_t kPageKeys = 16;       // pages of a cache have a multiple of them
constexpr int64_t kLeastLanes = 8;      // rows that a thread has at least in kernels of single rows
constexpr int64_t kMessageInputs = 32;  // GPUs read multiples of them: 64 bytes of 16-bit inputs
constexpr int64_t kDepthInputs = 16;    // but up to so many, a step of their matrix unit, as those

}  // namespace xeflash
