// Runs the groups of a launch on host threads, the hardware threads of a group in turns.
#pragma once

#include "launch/module.hpp"
#include "launch/payload.hpp"

namespace xesim {

// How many host threads a launch of so many groups uses: XEFLASH_SIM_THREADS, else one per
// processor.
int worker_count(uint64_t groups);

// Throws the first fault of any worker, described. `workers` has one element per host thread.
void run_groups(Launch& launch, const LaunchDesc& desc, const Kernel& kernel,
                const Payload& payload, std::vector<Worker>& workers);

// The same on one host thread: groups take their places on the device's Xe-cores in turn as places
// become free, and the threads of all groups that have one take turns. A worker stands for a place;
// their number is what the device holds.
void run_together(Launch& launch, const LaunchDesc& desc, const Kernel& kernel,
                  const Payload& payload, std::vector<Worker>& workers);

// Runs the threads of one group until all have ended; faults carry kernel, thread and instruction.
void run_group(Launch& launch, Group& group);

}  // namespace xesim
