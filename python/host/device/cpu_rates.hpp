// What a core of this CPU multiplies and adds in a second, by each instruction that kernels of bf16
// have a choice of.
#pragma once

#include <string>

namespace xeflash {

// In multiply-adds of a core per second; 0: the CPU has no such instruction, or the system forbids
// it.
struct CpuRates {
  double fp32 = 0;   // vfmadd231ps, of the widest vectors
  double pairs = 0;  // vdpbf16ps: two products of bf16 for each element of fp32
  double tiles = 0;  // tdpbf16ps, of AMX
};

// Takes a millisecond: the best of some samples, as what else runs only takes time away.
CpuRates measure_cpu_rates();

// The CPU's maker, family, model and name, if it has more than one instruction for bf16; else
// nothing, as there is nothing to choose.
std::string cpu_with_a_choice();

// What kernels are chosen by from now on.
void set_cpu_rates(const CpuRates& rates);

// The instruction set that kernels for CPUs use: cpu-generic (AVX2), cpu-avx512, cpu-avx512-bf16 or
// cpu-amx-bf16. XEFLASH_CPU names one, of those that the CPU has.
std::string cpu_arch();

}  // namespace xeflash
