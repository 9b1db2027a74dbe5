#include "machine/groups.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <thread>

namespace xesim {
namespace {

uint64_t next_random(uint64_t& state) {  // xorshift64 (Marsaglia, 2003)
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

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

std::string deadlock(const Group& group) {
  std::string text = "deadlock: no thread of the group can go on;";
  int shown = 0;
  for (const auto& thread : group.threads) {
    if (thread->state != ThreadState::kWaiting || shown++ == 4) continue;
    const Barrier& b = group.barriers[static_cast<size_t>(thread->waiting_barrier & 31)];
    char line[160];
    std::snprintf(
        line, sizeof line,
        " thread %d waits at barrier %d (%d of %d producers, %zu of %d consumers arrived)",
        thread->number, thread->waiting_barrier, b.producers, b.expected_producers,
        b.consumers.size(), b.expected_consumers);
    text += line;
  }
  if (group.exited != 0) text += ", " + std::to_string(group.exited) + " threads have ended";
  return text;
}

void start_group(Launch& launch, Group& group, const LaunchDesc& desc, const Kernel& kernel,
                 const Payload& payload, Worker& worker, int first_resident, uint64_t linear) {
  const uint64_t x = desc.groups[0], y = desc.groups[1];
  group.id = {static_cast<uint32_t>(linear % x), static_cast<uint32_t>(linear / x % y),
              static_cast<uint32_t>(linear / x / y)};
  group.linear = linear;
  const size_t threads = static_cast<size_t>(launch.threads_per_group);
  group.slm.data.assign(launch.slm_bytes, 0xff);
  group.slm.defined.assign(launch.checks.uninitialised ? launch.slm_bytes : 0, 0);
  group.barriers.fill(Barrier{});
  group.released.assign(threads, {});
  group.exited = 0;
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

}  // namespace

int worker_count(uint64_t groups) {
  const uint64_t processors = std::max(1u, std::thread::hardware_concurrency());
  return static_cast<int>(
      std::min<uint64_t>({environment_number("XEFLASH_SIM_THREADS", processors), groups, 256}));
}

void run_group(Launch& launch, Group& group, uint64_t& random) {
  const size_t count = group.threads.size();
  const uint64_t limit = instruction_limit();
  uint64_t spent = 0;
  size_t next = 0;
  launch.observers.on_group(group);
  for (size_t ended = 0; ended < count;) {
    // Of the threads that can run: at random under "interleave", else the next in turn, as long as
    // it can.
    size_t chosen = count;
    const size_t start = launch.checks.interleave ? next_random(random) % count : next;
    for (size_t k = 0; k < count && chosen == count; ++k) {
      const size_t i = (start + k) % count;
      if (group.threads[i]->state == ThreadState::kReady) chosen = i;
    }
    if (chosen == count) {
      for (const auto& thread : group.threads) {
        if (thread->state == ThreadState::kWaiting)
          throw Fault(describe_fault(*thread, deadlock(group)));
      }
    }
    Thread& thread = *group.threads[chosen];
    const uint64_t slice =
        launch.checks.interleave && count > 1 ? 1 + next_random(random) % 256 : 1 << 16;
    try {
      run(thread, slice);
    } catch (const Fault& fault) {
      throw Fault(describe_fault(thread, fault.what()));
    }
    spent += slice;
    if (thread.state == ThreadState::kEnded) {
      ++ended;
      spent = 0;
    }
    if (spent > limit && spent / count > limit / count) {
      throw Fault(describe_fault(thread, "the group ran for more than " + std::to_string(limit) +
                                             " instructions (XEFLASH_SIM_MAX_INSTRUCTIONS)"));
    }
    if (launch.stop.load(std::memory_order_relaxed)) return;
    next = (chosen + 1) % count;
  }
}

void run_groups(Launch& launch, const LaunchDesc& desc, const Kernel& kernel,
                const Payload& payload, std::vector<Worker>& workers) {
  const uint64_t total = uint64_t{desc.groups[0]} * desc.groups[1] * desc.groups[2];
  // Under "interleave" the groups come in another order: k -> k * step mod total is a permutation.
  uint64_t step = 1, shift = 0;
  if (launch.checks.interleave && total > 2) {
    uint64_t random = launch.checks.seed * 2 + 0x9e3779b97f4a7c15;
    do {
      step = next_random(random) % total;
    } while (std::gcd(step, total) != 1);
    shift = next_random(random) % total;
  }
  std::atomic<uint64_t> next{0};
  std::exception_ptr fault;
  std::mutex fault_mutex;
  const auto work = [&](size_t w) {
    Group group;
    try {
      for (uint64_t k; !launch.stop && (k = next.fetch_add(1)) < total;) {
        const uint64_t linear =
            static_cast<uint64_t>((static_cast<unsigned __int128>(k) * step + shift) % total);
        start_group(launch, group, desc, kernel, payload, workers[w],
                    static_cast<int>(w) * launch.threads_per_group, linear);
        workers[w].random =
            (launch.checks.seed + 1) * 0x9e3779b97f4a7c15 ^ (linear + 1) * 0xbf58476d1ce4e5b9;
        run_group(launch, group, workers[w].random);
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

}  // namespace xesim
