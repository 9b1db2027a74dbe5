// Which compiled kernels serve a problem: looked up by its description, made by Python
// (xeflash.jit) at the first use.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "access.hpp"
#include "array.hpp"
#include "fields.hpp"
#include "launch.hpp"
#include "score_mod.hpp"
#include "sizes.hpp"

namespace xeflash {

enum class Algorithm : uint8_t {
  kForward,
  kDecode,
  kBackwardQ,
  kBackwardK,
  kBackward,
  kBackwardBias,
  kBackwardCaptures,
  kBackwardHeads,
  kProbabilities,
  kDocumentSpans,
  kAppend,
  kMergeStates,
  kStandard,
  kLinear,
  kMatmulSoftmax,
  kLinearCrossEntropy,
  kLogitSlopes,
  kMatmulAdd,
  kLinearTopK,
  kSampleTokens
};
const char* name_of(Algorithm algorithm);  // as Python knows it

enum class ScoreHooks : uint32_t {};  // bits of kScoreHooks (score_hooks.hpp)
enum class MaskKind : uint8_t {};     // a row of kMasks there

// What changes the code of a kernel: Desc in tune/desc.py, which explains it. Everything else
// (lengths, strides, masks by position) is a parameter.
struct Desc {
  Algorithm algorithm = Algorithm::kForward;
  DType dtype = DType::kOther;
  uint16_t head_dim = 0, head_dim_v = 0;
  uint8_t rows = 0;
  ScoreHooks hooks{};
  DType bias = DType::kOther;  // kOther: none
  ScoreModId score_mod = ScoreModId::kNone;
  MaskKind mask{};
  bool dropout = false, packed_heads = false, split_keys = false;
  CacheKind cache = CacheKind::kPlain;
  uint8_t page_unit = kPageKeys;
  DType cache_dtype = DType::kOther;  // kOther: dtype
  bool cache_scales = false, unified_max = false;
  DType bias_gradient = DType::kOther;  // kOther: not wanted
  bool sums_slopes = false, adds_up = false;
  uint8_t learned = 0;
  Access access = Access::kNone;

  // Whether products are the scores, but for the scale: ScoreVariant::kIdentity.
  bool has_plain_scores() const {
    return hooks == ScoreHooks{} && bias == DType::kOther && score_mod == ScoreModId::kNone;
  }
  bool operator==(const Desc&) const = default;
};

constexpr std::tuple kDescFields{
    Field{"algorithm", &Desc::algorithm},
    Field{"dtype", &Desc::dtype},
    Field{"head_dim", &Desc::head_dim},
    Field{"head_dim_v", &Desc::head_dim_v},
    Field{"rows", &Desc::rows},
    Field{"hooks", &Desc::hooks},
    Field{"bias", &Desc::bias},
    Field{"score_mod", &Desc::score_mod},
    Field{"mask", &Desc::mask},
    Field{"dropout", &Desc::dropout},
    Field{"packed_heads", &Desc::packed_heads},
    Field{"split_keys", &Desc::split_keys},
    Field{"cache", &Desc::cache},
    Field{"page_unit", &Desc::page_unit},
    Field{"cache_dtype", &Desc::cache_dtype},
    Field{"cache_scales", &Desc::cache_scales},
    Field{"unified_max", &Desc::unified_max},
    Field{"bias_gradient", &Desc::bias_gradient},
    Field{"sums_slopes", &Desc::sums_slopes},
    Field{"adds_up", &Desc::adds_up},
    Field{"learned", &Desc::learned},
    Field{"access", &Desc::access},
};
static_assert(is_complete(kDescFields));

// The same of a product of few rows: ProductDesc in tune/desc.py.
struct ProductDesc {
  Algorithm algorithm = Algorithm::kLinear;
  DType dtype = DType::kOther;
  uint8_t rows = 0, width = 0;
  DType weight = DType::kOther, scale = DType::kOther;  // kOther: dtype; none
  uint8_t group = 0;
  bool wide = false;
  Access access = Access::kNone;

  bool operator==(const ProductDesc&) const = default;
};

constexpr std::tuple kProductFields{
    Field{"algorithm", &ProductDesc::algorithm}, Field{"dtype", &ProductDesc::dtype},
    Field{"rows", &ProductDesc::rows},           Field{"width", &ProductDesc::width},
    Field{"weight", &ProductDesc::weight},       Field{"scale", &ProductDesc::scale},
    Field{"group", &ProductDesc::group},         Field{"wide", &ProductDesc::wide},
    Field{"access", &ProductDesc::access},
};
static_assert(is_complete(kProductFields));

// The same of matmul_softmax and of what a head makes of its logits: SoftmaxDesc in tune/desc.py.
struct SoftmaxDesc {
  Algorithm algorithm = Algorithm::kMatmulSoftmax;
  DType dtype = DType::kOther;
  uint8_t rows = 0, columns = 0;
  uint16_t inputs = 0;
  bool more_inputs = false;
  DType bias = DType::kOther;  // kOther: none
  Access access = Access::kNone;

  bool operator==(const SoftmaxDesc&) const = default;
};

constexpr std::tuple kSoftmaxFields{
    Field{"algorithm", &SoftmaxDesc::algorithm}, Field{"dtype", &SoftmaxDesc::dtype},
    Field{"rows", &SoftmaxDesc::rows},           Field{"columns", &SoftmaxDesc::columns},
    Field{"inputs", &SoftmaxDesc::inputs},       Field{"more_inputs", &SoftmaxDesc::more_inputs},
    Field{"bias", &SoftmaxDesc::bias},           Field{"access", &SoftmaxDesc::access},
};
static_assert(is_complete(kSoftmaxFields));

// Of an algorithm on these arrays, without features.
Desc describe(Algorithm algorithm, const Problem& problem);
// What is done to its scores and probabilities.
void describe_scores(Desc& desc, const Problem& problem, const FwdRequest& request);

// Compiled kernels of an algorithm (ALGORITHMS in tune/desc.py), and the sizes that xeflash.tune
// has for them.
struct Kernels {
  std::vector<std::shared_ptr<const Entry>> entries;
  int block_q = 0, block_k = 0;
  int rows_in_group = 0;
  int block_v = 0;         // columns of the output that a thread owns
  int groups_of_rows = 1;  // work-groups of the same rows: each has a part of the output's columns
  int threads = 1;         // of a work-group
  int turns = 1;           // of them that take turns at the keys of the same rows
};

// `provider(desc: dict, queue: int, again: bool) -> (native code: bytes, entries: tuple, Config)`,
// see xeflash.jit.provide; `again`: the driver did not take what it gave before.
void set_kernel_provider(pybind11::object provider);

// Names of the kernels that calls have looked up since this was asked last.
std::vector<std::string> used_kernels();

const Kernels& find_kernels(const Desc& desc, const Place& place);
// The same; where they cannot be compiled, those of `stand_in(desc)`, which `desc` then is.
template <class StandIn>
const Kernels& find_kernels_or(StandIn stand_in, Desc& desc, const Place& place);
const Kernels& find_kernels(const ProductDesc& desc, const Place& place);
const Kernels& find_kernels(const SoftmaxDesc& desc, const Place& place);

// Null: they are not there, and cannot be compiled.
const Kernels* kernels_if_there(const Desc& desc, const Place& place);
void say_that_another_serves(const Desc& desc, const Place& place);  // once

template <class StandIn>
const Kernels& find_kernels_or(StandIn stand_in, Desc& desc, const Place& place) {
  if (const Kernels* kernels = kernels_if_there(desc, place)) return *kernels;
  const Desc other = stand_in(desc);
  const Kernels* kernels = other == desc ? nullptr : kernels_if_there(other, place);
  if (!kernels) return find_kernels(desc, place);  // says what is missing
  say_that_another_serves(desc, place);
  desc = other;
  return *kernels;
}

// Kernels on GPUs count their groups in 32 bits.
void check_groups(uint64_t groups, Access access);

// Work-groups of a kernel whose threads own blocks of rows; refuses more than a GPU can count.
uint64_t groups_for(const Desc& desc, const Kernels& kernels, int64_t rows, int64_t heads);

}  // namespace xeflash
