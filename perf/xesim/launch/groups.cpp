#include "launch/groups.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <optional>
#include <thread>

#include "machine/schedule.hpp"

namespace xesim {
namespace {

uint64_t environment_number(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const uint64_t value = std::strtoull(text, &end, 10);
  if (*end != '\0' || value == 0) fail("%s must be a positive number, got '%s'", name, text);
  return value;
}

// A kernel that loops for ever has to end too. 10^9 instructions are minutes of simulation.
uint64_t instruction_limit() {
  return environment_number("XEFLASH_SIM_MAX_INSTRUCTIONS", 1'000'000'000);
}

[[noreturn]] void report_deadlock(const Group& group) {
  const auto waiting =
      std::find_if(group.threads.begin(), group.threads.end(),
                   [](const auto& thread) { return thread->state == ThreadState::kWaiting; });
  throw Fault(describe_fault(**waiting, group.barriers.explain(group)));
}

void start_group(Launch& launch, Group& group, const LaunchDesc& desc, const Kernel& kernel,
                 const Payload& payload, Worker& worker, int first_resident, uint64_t linear) {
  const uint64_t x = desc.groups[0], y = desc.groups[1];
  group.id = {static_cast<uint32_t>(linear % x), static_cast<uint32_t>(linear / x % y),
              static_cast<uint32_t>(linear / x / y)};
  group.linear = linear;
  group.core = static_cast<uint32_t>(worker.index % desc.chip.cores);
  const size_t threads = static_cast<size_t>(launch.threads_per_group);
  group.slm.data.assign(launch.slm_bytes, 0xff);
  group.slm.defined.assign(launch.checks.uninitialised ? launch.slm_bytes : 0, 0);
  group.barriers.start(threads);
  while (group.threads.size() < threads) group.threads.push_back(std::make_unique<Thread>());
  for (size_t i = 0; i < threads; ++i) {
    Thread& thread = *group.threads[i];
    thread.number = static_cast<int>(i);
    thread.group = &group;
    thread.launch = &launch;
    thread.worker = &worker;
    start_thread(thread, kernel, desc, payload, first_resident + static_cast<int>(i));
  }
}

// The threads of a group in turns, from its start to its end.
class Turning {
 public:
  Turning(Launch& launch, Group& group)
      : group_(group),
        turns_(launch.checks, group),
        limit_(instruction_limit()),
        left_(group.threads.size()) {
    launch.observers.on_group(group);
  }
  bool ended() const { return left_ == 0; }
  void turn() {
    const auto [thread, instructions] = turns_.next();
    if (thread == nullptr) report_deadlock(group_);
    try {
      run(*thread, instructions);
    } catch (const Fault& fault) {
      throw Fault(describe_fault(*thread, fault.what()));
    }
    spent_ += instructions;
    if (thread->state == ThreadState::kEnded) {
      --left_;
      spent_ = 0;
    }
    const size_t count = group_.threads.size();
    if (spent_ > limit_ && spent_ / count > limit_ / count) {
      throw Fault(describe_fault(*thread, "the group ran for more than " + std::to_string(limit_) +
                                              " instructions (XEFLASH_SIM_MAX_INSTRUCTIONS)"));
    }
  }

 private:
  Group& group_;
  Turns turns_;
  const uint64_t limit_;
  uint64_t spent_ = 0;
  size_t left_;  // threads that have not ended
};

}  // namespace

int worker_count(uint64_t groups) {
  const uint64_t processors = std::max(1u, std::thread::hardware_concurrency());
  return static_cast<int>(
      std::min<uint64_t>({environment_number("XEFLASH_SIM_THREADS", processors), groups, 256}));
}

void run_group(Launch& launch, Group& group) {
  Turning turning(launch, group);
  while (!turning.ended() && !launch.stop.load(std::memory_order_relaxed)) turning.turn();
}

void run_groups(Launch& launch, const LaunchDesc& desc, const Kernel& kernel,
                const Payload& payload, std::vector<Worker>& workers) {
  const uint64_t total = uint64_t{desc.groups[0]} * desc.groups[1] * desc.groups[2];
  const GroupOrder order(launch.checks, total);
  std::atomic<uint64_t> next{0};
  std::exception_ptr fault;
  std::mutex fault_mutex;
  const auto work = [&](size_t w) {
    Group group;
    try {
      for (uint64_t k; !launch.stop && (k = next.fetch_add(1)) < total;) {
        start_group(launch, group, desc, kernel, payload, workers[w],
                    static_cast<int>(w) * launch.threads_per_group, order[k]);
        run_group(launch, group);
      }
    } catch (...) {
      const std::lock_guard lock(fault_mutex);
      if (fault == nullptr) fault = std::current_exception();
      launch.stop = true;
    }
  };
  std::vector<std::thread> helpers;
  for (size_t w = 1; w < workers.size(); ++w) helpers.emplace_back(work, w);
  work(0);
  for (std::thread& helper : helpers) helper.join();
  if (fault != nullptr) std::rethrow_exception(fault);
}

void run_together(Launch& launch, const LaunchDesc& desc, const Kernel& kernel,
                  const Payload& payload, std::vector<Worker>& workers) {
  const uint64_t total = uint64_t{desc.groups[0]} * desc.groups[1] * desc.groups[2];
  const GroupOrder order(launch.checks, total);
  struct Place {
    Group group;
    std::optional<Turning> turning;  // none: nothing is left to run
  };
  std::vector<Place> places(workers.size());
  uint64_t next = 0;
  const auto occupy = [&](size_t w) {
    Place& place = places[w];
    place.turning.reset();
    if (next == total) return;
    start_group(launch, place.group, desc, kernel, payload, workers[w],
                static_cast<int>(w) * launch.threads_per_group, order[next++]);
    place.turning.emplace(launch, place.group);
  };
  for (size_t w = 0; w < places.size(); ++w) occupy(w);
  for (uint64_t ended = 0; ended < total;) {
    for (size_t w = 0; w < places.size(); ++w) {
      std::optional<Turning>& turning = places[w].turning;
      if (!turning) continue;
      for (int i = 0; i < launch.threads_per_group && !turning->ended(); ++i) turning->turn();
      if (!turning->ended()) continue;
      ++ended;
      occupy(w);
    }
  }
}

}  // namespace xesim
