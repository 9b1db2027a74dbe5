// Measures how many multiply-adds a core of this CPU does in a second, by each instruction from
// which kernels of bf16 choose.
#pragma once

#include <string>

namespace xeflash {

// The multiply-adds of a core per second; 0 if the CPU has no such instruction, or the system
// forbids it.
struct CpuRates {
  double fp32 = 0;   // vfmadd231ps, of the widest vectors
  double pairs = 0;  // vdpbf16ps: two products of bf16 for each element of fp32
  double tiles = 0;  // tdpbf16ps, of AMX
};

// Measures the rates in a millisecond. It takes the best of some samples, because other programs
// only make them slower.
CpuRates measure_cpu_rates();

// Returns the CPU's maker, family, model and name if it has more than one instruction for bf16;
// else nothing, because there is no choice.
std::string cpu_with_a_choice();

// Sets the rates by which kernels are chosen from now on.
void set_cpu_rates(const CpuRates& rates);

// Returns the instruction set that kernels for CPUs use: cpu-generic (AVX2), cpu-avx512,
// cpu-avx512-bf16 or cpu-amx-bf16. XEFLASH_CPU can name another one that the CPU has.
std::string cpu_arch();

}  // namespace xeflash
