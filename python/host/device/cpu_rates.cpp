#include "host/device/cpu_rates.hpp"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace xeflash {
namespace {

// The instruction sets. Each one includes those before it.
constexpr std::array kArchs = {"cpu-generic", "cpu-avx512", "cpu-avx512-bf16", "cpu-amx-bf16"};
enum Arch { kGeneric, kAvx512, kPairs, kTiles };

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

// Asks Linux for the registers of AMX, as a process must before its first use of them.
bool amx_is_granted() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  static const bool granted = __builtin_cpu_supports("amx-bf16") &&
                              syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

Arch machine_arch() {
  if (!has_avx512()) return kGeneric;
  if (!__builtin_cpu_supports("avx512bf16")) return kAvx512;
  return amx_is_granted() ? kTiles : kPairs;
}

// Returns the instruction set that the OpenCL driver compiles for: the machine's, or the one that
// its environment variable names.
Arch driver_arch() {
  const char* target = std::getenv("CL_CONFIG_CPU_TARGET_ARCH");
  if (!target || !*target) return machine_arch();
  const std::string t = target;
  for (const char* name : {"skx", "skylake-avx512", "icelake-server", "icl", "cascadelake"}) {
    if (t == name) return kAvx512;
  }
  for (const char* name : {"sapphirerapids", "graniterapids", "spr", "gnr"}) {
    if (t == name) return amx_is_granted() ? kTiles : kPairs;
  }
  return kGeneric;
}

// Twelve sums are more than the CPU has in flight at a time, so latencies are hidden. All registers
// are 0 first, because numbers near 0 could take longer.
#define XF_ZERO(i) "vxorps %%xmm" #i ", %%xmm" #i ", %%xmm" #i "\n"
#define XF_OF_YMM(i) "vfmadd231ps %%ymm12, %%ymm13, %%ymm" #i "\n"
#define XF_OF_ZMM(i) "vfmadd231ps %%zmm12, %%zmm13, %%zmm" #i "\n"
#define XF_OF_PAIRS(i) "vdpbf16ps %%zmm12, %%zmm13, %%zmm" #i "\n"
#define XF_TWELVE(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)
#define XF_REPEAT(steps, body)                                                                 \
  asm volatile(XF_TWELVE(XF_ZERO) XF_ZERO(12) XF_ZERO(13) "1:\n" body                          \
                                                          "dec %0\njnz 1b\n"                   \
                                                          "vzeroupper\n"                       \
               : "+r"(steps)                                                                   \
               :                                                                               \
               : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
                 "xmm9", "xmm10", "xmm11", "xmm12", "xmm13")

void run_ymm(long steps) { XF_REPEAT(steps, XF_TWELVE(XF_OF_YMM)); }
void run_zmm(long steps) { XF_REPEAT(steps, XF_TWELVE(XF_OF_ZMM)); }
void run_pairs(long steps) { XF_REPEAT(steps, XF_TWELVE(XF_OF_PAIRS)); }

// There are four sums of 16 rows and columns, as in a product of two by two tiles.
void run_tiles(long steps) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  asm volatile(
      "ldtilecfg %1\n"
      "tilezero %%tmm0\ntilezero %%tmm1\ntilezero %%tmm2\ntilezero %%tmm3\n"
      "tilezero %%tmm4\ntilezero %%tmm5\ntilezero %%tmm6\ntilezero %%tmm7\n"
      "1:\n"
      "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\ntdpbf16ps %%tmm7, %%tmm4, %%tmm1\n"
      "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\ntdpbf16ps %%tmm7, %%tmm5, %%tmm3\n"
      "dec %0\njnz 1b\n"
      "tilerelease\n"
      : "+r"(steps)
      : "m"(config)
      : "cc", "memory");
}

struct Way {
  void (*run)(long steps);
  double multiply_adds;  // of a step
  long steps;            // of a sample of some 20 us
  double& rate;

  void sample() {
    const auto start = std::chrono::steady_clock::now();
    run(steps);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    rate = std::max(rate, multiply_adds * static_cast<double>(steps) / seconds.count());
  }
};

CpuRates rates_in_use;

// A small gain is no gain, because pairs must be packed, and tiles must be loaded and transposed.
constexpr double kGain = 1.2;

Arch fastest_up_to(Arch most) {
  if (most < kPairs || rates_in_use.fp32 == 0) return most;  // not measured: what is newest
  if (most == kTiles &&
      rates_in_use.tiles > kGain * std::max(rates_in_use.fp32, rates_in_use.pairs))
    return kTiles;
  return rates_in_use.pairs > kGain * rates_in_use.fp32 ? kPairs : kAvx512;
}

}  // namespace

CpuRates measure_cpu_rates() {
  constexpr int kSamples = 8;
  const Arch most = machine_arch();
  CpuRates rates;
  Way fp32 = most >= kAvx512 ? Way{run_zmm, 12 * 16, 10000, rates.fp32}
                             : Way{run_ymm, 12 * 8, 10000, rates.fp32};
  Way pairs{run_pairs, 12 * 32, 10000, rates.pairs};
  Way tiles{run_tiles, 4 * 16 * 16 * 32, 1000, rates.tiles};
  for (int i = 0; i < kSamples; ++i) {  // in turns: what disturbs one for a while disturbs all
    if (__builtin_cpu_supports("fma")) fp32.sample();
    if (most >= kPairs) pairs.sample();
    if (most >= kTiles) tiles.sample();
  }
  return rates;
}

std::string cpu_with_a_choice() {
  if (machine_arch() < kPairs) return "";
  std::array<unsigned, 13> words{};
  unsigned a = 0, b = 0, c = 0, d = 0;
  __get_cpuid(1, &a, &b, &c, &d);
  for (unsigned i = 0; i < 3; ++i) {
    unsigned* name = &words[4 * i];
    __get_cpuid(0x80000002 + i, name, name + 1, name + 2, name + 3);
  }
  return std::to_string(a) + " " + reinterpret_cast<const char*>(words.data());
}

void set_cpu_rates(const CpuRates& rates) { rates_in_use = rates; }

std::string cpu_arch() {
  const Arch most = driver_arch();
  const char* named = std::getenv("XEFLASH_CPU");
  if (!named || !*named) return kArchs[fastest_up_to(most)];
  std::string choices;
  for (int i = 0; i <= most; ++i) {
    if (std::string("cpu-") + named == kArchs[i]) return kArchs[i];
    choices += (i ? ", " : "") + std::string(kArchs[i] + std::strlen("cpu-"));
  }
  throw std::invalid_argument("xeflash: XEFLASH_CPU must be one of " + choices +
                              " on this CPU, got '" + named + "'");
}

}  // namespace xeflash
