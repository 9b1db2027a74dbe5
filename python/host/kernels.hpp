// Which compiled kernels serve a problem: looked up by its description, made by Python
// (xeflash.jit) at the first use.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "access.hpp"
#include "array.hpp"
#include "runtime.hpp"

namespace xeflash {

enum class Algorithm : uint8_t { kForward, kDecode, kAppend, kMerge, kStandard };
const char* name_of(Algorithm algorithm);  // as Python knows it

// What changes the code of a kernel. Everything else (lengths, strides, masks by position) is a
// parameter.
struct FwdDesc {
  Algorithm algorithm = Algorithm::kForward;
  DType dtype = DType::kOther;
  DType bias = DType::kOther;  // kOther: none
  bool softcap = false, alibi = false, dropout = false;
  bool negative_scale = false;  // and nothing else changes scores
  bool packed_heads = false;    // the rows of a tile are those of all heads that share its keys
  bool split_keys = false;      // GPUs: the threads of a group take turns at the keys of a tile
  CacheKind cache = CacheKind::kPlain;
  uint8_t page_unit = 16;             // pages are multiples of so many keys
  DType cache_dtype = DType::kOther;  // of K and V; kOther: dtype
  bool cache_scales = false;          // a factor per row of K and V
  bool unified_max = false;           // decoding
  uint8_t rows = 0;                   // rows of a tile that can be filled, see rows_for
  uint16_t head_dim = 0, head_dim_v = 0;
  Access access = Access::kNone;
  uint8_t device = 0;      // device_index
  uint16_t score_mod = 0;  // score_mod_source, 0: none

  bool operator==(const FwdDesc&) const = default;
};

struct FwdKernels {
  std::vector<sycl::kernel*> entries;  // of the algorithm, see jit/kernel.py
  int block_q = 0, block_k = 0;
  int parts = 1;    // of the columns of the output, each of groups of its own
  int threads = 1;  // of a work-group
  int rows_in_group = 0;
  DeviceFacts device;
};

// `provider(description: dict, queue: int, again: bool) -> (native code: bytes, entries: tuple,
// block_q: int, block_k: int, rows of a group: int, parts: int, threads: int)`, see
// xeflash.jit.provide; `again`: the driver did not take what it gave before.
void set_kernel_provider(pybind11::object provider);

const FwdKernels& find_kernels(const FwdDesc& desc, sycl::queue& queue);

// Kernels on GPUs count their groups in 32 bits.
void check_groups(uint64_t groups, Access access);

// Work-groups of a kernel whose threads own blocks of rows; refuses more than a GPU can count.
uint64_t groups_for(const FwdDesc& desc, const FwdKernels& kernels, int64_t rows, int64_t heads);

}  // namespace xeflash
