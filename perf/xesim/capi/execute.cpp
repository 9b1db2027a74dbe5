// Runs bare machine code for the tests of instructions: no binary, no payload, registers in and
// out.
#include <cstring>
#include <string>

#include "capi/capi.hpp"
#include "insns/executor.hpp"
#include "launch/groups.hpp"
#include "observe/races.hpp"

namespace xesim {
namespace {

// The value of "key" in a flat JSON object of numbers, strings and booleans; empty if it is not
// there.
std::string option(const std::string& json, const std::string& key) {
  size_t at = json.find('"' + key + '"');
  if (at == std::string::npos) return "";
  at = json.find(':', at) + 1;
  while (at < json.size() && json[at] == ' ') ++at;
  if (json[at] == '"') return json.substr(at + 1, json.find('"', at + 1) - at - 1);
  return json.substr(at, json.find_first_of(",} ", at) - at);
}
uint64_t number(const std::string& json, const std::string& key, uint64_t fallback) {
  const std::string text = option(json, key);
  return text.empty() ? fallback : std::stoull(text, nullptr, 0);
}

void execute(const char* family_name, std::span<const uint8_t> code, const std::string& options,
             uint8_t* grf, uint8_t* acc, uint32_t* flags, uint32_t* address) {
  const Isa& isa = isa_of(family_named(family_name));
  Launch launch;
  launch.isa = &isa;
  launch.checks =
      parse_checks(option(options, "check").empty() ? "none" : option(options, "check"));
  const std::string seed = option(options, "seed");
  if (!seed.empty()) launch.checks.seed = number(options, "seed", 0);
  const bool undefined = option(options, "undefined") == "true";
  launch.checks.uninitialised |= undefined;
  launch.program = std::make_shared<const Program>(decode_program(isa, code, 256));
  launch.kernel = "(code)";
  launch.threads_per_group = static_cast<int>(number(options, "threads", 1));
  if (launch.threads_per_group < 1 || launch.threads_per_group > 64)
    fail("xesim_execute: threads must be 1 to 64");
  launch.slm_bytes = static_cast<uint32_t>(number(options, "slm_bytes", 0));
  launch.indirect_base = kIndirectBase;
  launch.indirect_data.assign(4096, 0);

  launch.observers.add<Races>(launch.checks, static_cast<uint64_t>(launch.threads_per_group), 1);

  Worker worker;
  worker.executed.assign(launch.program->insts.size(), 0);
  Group group;
  group.id = {0, 0, 0};
  group.slm.data.assign(launch.slm_bytes, 0);
  if (launch.checks.uninitialised) group.slm.defined.assign(launch.slm_bytes, 0);
  group.barriers.start(static_cast<size_t>(launch.threads_per_group));
  const size_t grf_bytes = static_cast<size_t>(256 * isa.grf_bytes),
               acc_bytes = static_cast<size_t>(16 * isa.grf_bytes);
  for (int i = 0; i < launch.threads_per_group; ++i) {
    auto thread = std::make_unique<Thread>();
    thread->launch = &launch;
    thread->group = &group;
    thread->worker = &worker;
    thread->number = i;
    std::memcpy(thread->grf, grf, grf_bytes);
    std::memcpy(thread->acc, acc, acc_bytes);
    std::memset(thread->wide_acc, 0, sizeof thread->wide_acc);
    std::memcpy(thread->flag, flags, sizeof thread->flag);
    std::memcpy(thread->a0, address, 32);
    std::memset(thread->cr0, 0, sizeof thread->cr0);
    std::memset(thread->sr0, 0, sizeof thread->sr0);
    // Denormals are kept, as the first instructions of every compiled kernel ask for.
    thread->cr0[0] = isa.xe2 ? 0x400004C0 : 0x4C0;
    thread->execution_mask = thread->dispatch_mask =
        static_cast<uint32_t>(number(options, "execution_mask", 0xffffffff));
    thread->lane_ip.fill(~0u);
    thread->track = launch.checks.uninitialised;
    if (!undefined) {
      thread->grf_defined.set_all();
      thread->acc_defined.set_all();
      std::memset(thread->flag_defined, 0xff, sizeof thread->flag_defined);
      thread->a0_defined = ~0u;
    } else {
      std::memset(thread->flag_defined, 0, sizeof thread->flag_defined);
      thread->a0_defined = 0;
    }
    if (launch.threads_per_group > 1 || undefined) {
      thread->write<uint32_t>(
          8, static_cast<uint32_t>(i) | static_cast<uint32_t>(launch.threads_per_group) << 24);
      thread->grf_defined.set(0, static_cast<uint32_t>(isa.grf_bytes), true);
    }
    thread->sr0[2] = thread->dispatch_mask;
    group.threads.push_back(std::move(thread));
  }
  run_group(launch, group);

  const Thread& first = *group.threads[0];
  std::memcpy(grf, first.grf, grf_bytes);
  std::memcpy(acc, first.acc, acc_bytes);
  std::memcpy(flags, first.flag, sizeof first.flag);
  std::memcpy(address, first.a0, 32);
}

}  // namespace
}  // namespace xesim

// Null on success.
XESIM_API char* xesim_execute(const char* family, const uint8_t* code, uint64_t bytes,
                              const char* options, uint8_t* grf, uint8_t* acc, uint32_t* flags,
                              uint32_t* address) {
  return xesim::guarded([&] {
    xesim::execute(family, {code, bytes}, options == nullptr ? "" : options, grf, acc, flags,
                   address);
  });
}
