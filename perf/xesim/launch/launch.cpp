#include "launch/launch.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <string_view>

#include "launch/groups.hpp"
#include "observe/caches.hpp"
#include "observe/counts.hpp"
#include "observe/lines.hpp"
#include "observe/profile.hpp"
#include "observe/races.hpp"

namespace xesim {
namespace {

std::mutex g_one_at_a_time;  // a launch uses all processors

// Threads that one Xe-core holds: a group must fit. In 256-register mode half as many.
int threads_of_core(Family family, int grf_count) {
  const int threads = family == Family::kDg2 ? 128 : 64;  // 16 engines of 8 threads, 8 engines of 8
  return grf_count > 128 ? threads / 2 : threads;
}

void check_registers(const KernelInfo& info) {
  if (info.scratch_bytes + info.private_bytes == 0) return;
  fail(
      "kernel %s: not all of its values are in registers: a thread has %u bytes of scratch memory, "
      "%u of them for spills, and %u of private memory",
      info.name.c_str(), info.scratch_bytes, info.spill_bytes, info.private_bytes);
}

void check_launch(const LaunchDesc& desc, const KernelInfo& info, Family family, int threads) {
  if (info.require_implicit_args) {
    fail("kernel %s needs the buffer of implicit arguments, which is not implemented",
         info.name.c_str());
  }
  for (size_t d = 0; d < 3; ++d) {
    if (desc.groups[d] == 0 || desc.local[d] == 0)
      fail("kernel %s: the launch has no work-items", info.name.c_str());
    if (!info.required_group_size.empty() && info.required_group_size[d] != 0 &&
        info.required_group_size[d] != desc.local[d]) {
      fail("kernel %s needs groups of %u x %u x %u work-items, got %u x %u x %u", info.name.c_str(),
           info.required_group_size[0], info.required_group_size[1], info.required_group_size[2],
           desc.local[0], desc.local[1], desc.local[2]);
    }
  }
  const int most = threads_of_core(family, info.grf_count);
  if (threads > most) {
    fail(
        "kernel %s: a group of %d threads does not fit: an Xe-core of %s holds %d with %d "
        "registers",
        info.name.c_str(), threads, isa_of(family).name, most, info.grf_count);
  }
}

// What an Xe-core sets apart for a group that wants so many bytes of SLM.
uint64_t slm_of_group(uint64_t bytes) {
  constexpr uint64_t kSteps[] = {0, 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128};  // KiB
  const auto fits = [=](uint64_t step) { return step << 10 >= bytes; };
  const uint64_t* step = std::find_if(std::begin(kSteps), std::end(kSteps), fits);
  return step == std::end(kSteps) ? bytes : *step << 10;
}

// Groups that an Xe-core holds at the same time.
uint64_t groups_on_core(const Launch& launch, const Chip& chip, int most_threads) {
  constexpr uint64_t kMost = 64;
  const auto by_threads = static_cast<uint64_t>(most_threads / launch.threads_per_group);
  const uint64_t slm = slm_of_group(launch.slm_bytes);
  const uint64_t by_slm = slm == 0 ? kMost : chip.slm_bytes / slm;
  return std::max<uint64_t>(std::min({by_threads, by_slm, kMost}), 1);
}

// What is left of its L1 beside them.
uint64_t l1_of_core(const Launch& launch, const Chip& chip, uint64_t groups) {
  const uint64_t slm = chip.slm_is_in_l1 ? groups * slm_of_group(launch.slm_bytes) : 0;
  return chip.l1_bytes - std::min(slm, chip.l1_bytes - 1);
}

// Who watches the launch. A new observer is a line here.
void watch(Launch& launch, const std::vector<Worker>& workers, uint64_t threads, const Chip& chip,
           uint64_t on_core) {
  launch.observers.add<Counts>(*launch.program, workers, launch.checks.listing);
  launch.observers.add<Lines>(workers.size());
  if (launch.checks.global_races || launch.checks.slm_races)
    launch.observers.add<Races>(launch.checks, threads, workers.size());
  const auto caches = launch.checks.caches;
  if (caches != Checks::Caches::kOff) {
    const bool has_l1 = caches == Checks::Caches::kL1AndL2;
    launch.observers.add<Caches>(chip, launch.checks,
                                 has_l1 ? l1_of_core(launch, chip, on_core) : 0);
  }
  const char* profile = std::getenv("XEFLASH_SIM_PROFILE");
  if (profile != nullptr && std::string_view(profile) == "1") {
    if (caches != Checks::Caches::kOff) fail("XEFLASH_SIM_PROFILE=1 does not go with caches=...");
    launch.observers.add<Profile>(workers.size());
  }
}

}  // namespace

LaunchRecord launch(const LaunchDesc& desc) {
  const std::lock_guard lock(g_one_at_a_time);

  Kernel& kernel = *desc.kernel;
  const KernelInfo& info = kernel.code.info;
  const uint64_t items = uint64_t{desc.local[0]} * desc.local[1] * desc.local[2];
  if (items > 4096)
    fail("kernel %s: a group of %llu work-items is too large", info.name.c_str(),
         static_cast<unsigned long long>(items));
  Launch launch;
  launch.isa = &isa_of(kernel.family);
  launch.checks = current_checks();
  launch.program = kernel.program();
  launch.kernel = info.name;
  launch.threads_per_group = static_cast<int>((items + static_cast<uint64_t>(info.simd_size) - 1) /
                                              static_cast<uint64_t>(info.simd_size));
  check_launch(desc, info, kernel.family, launch.threads_per_group);
  if (launch.checks.spills) check_registers(info);
  const uint64_t groups = uint64_t{desc.groups[0]} * desc.groups[1] * desc.groups[2];
  const uint64_t threads = groups * static_cast<uint64_t>(launch.threads_per_group);

  const bool caches = launch.checks.caches != Checks::Caches::kOff;
  const int host_threads = caches ? 1 : worker_count(groups);
  const int core_threads = threads_of_core(kernel.family, info.grf_count);
  const int resident = caches ? static_cast<int>(desc.chip.cores) * core_threads
                              : host_threads * launch.threads_per_group;
  const auto payload = make_payload(desc, kernel, launch, resident);
  const uint64_t on_core = groups_on_core(launch, desc.chip, core_threads);
  std::vector<Worker> workers(caches ? std::min(groups, on_core * desc.chip.cores)
                                     : static_cast<uint64_t>(host_threads));
  for (size_t i = 0; i < workers.size(); ++i) {
    workers[i].index = i;
    workers[i].executed.assign(launch.program->insts.size(), 0);
  }
  watch(launch, workers, threads, desc.chip, on_core);
  const auto begin = std::chrono::steady_clock::now();
  const auto run = caches ? run_together : run_groups;
  run(launch, desc, kernel, *payload, workers);

  LaunchRecord record;
  record.simulation_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  record.simulation_threads = static_cast<uint32_t>(host_threads);
  record.kernel = info.name;
  record.device = desc.device;
  record.groups = desc.groups;
  record.local = desc.local;
  record.simd = static_cast<uint32_t>(info.simd_size);
  record.grf = static_cast<uint32_t>(info.grf_count);
  record.threads = threads;
  record.slm_size = launch.slm_bytes;
  record.spill_bytes = info.spill_bytes;
  record.scratch_size = info.scratch_bytes;
  launch.observers.report(record);
  keep_record(record);
  return record;
}

void clear_caches() {
  const std::lock_guard lock(g_one_at_a_time);
  empty_l2();
}

}  // namespace xesim
