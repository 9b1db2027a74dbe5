#include "observe/profile.hpp"

#include <x86intrin.h>

#include "machine/program.hpp"
#include "observe/record.hpp"

namespace xesim {

void Profile::on_group(const Group& group) {
  workers_[group.threads[0]->worker->index].since = __rdtsc();
}

void Profile::on_instruction(const Thread& thread, size_t index) {
  PerWorker& worker = workers_[thread.worker->index];
  const uint64_t spent = __rdtsc() - worker.since;
  const InstClass inst_class = class_of(thread.launch->program->insts[index]);
  worker.ticks[static_cast<size_t>(inst_class)] += spent;
  worker.since = __rdtsc();
}

void Profile::report(LaunchRecord& record) {
  LaunchRecord::Shares ticks{};
  double total = 0;
  for (const PerWorker& worker : workers_) {
    for (size_t c = 0; c < kInstClasses; ++c) {
      ticks[c] += static_cast<double>(worker.ticks[c]);
      total += static_cast<double>(worker.ticks[c]);
    }
  }
  for (size_t c = 0; c < kInstClasses && total != 0; ++c) {
    record.simulation_class_share[c] = ticks[c] / total;
  }
}

}  // namespace xesim
