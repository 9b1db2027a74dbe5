// Describes kernels of attention, and finds the kernels for a description.
#pragma once

#include "host/attention/access.hpp"
#include "host/attention/problem.hpp"
#include "host/device/kernels.hpp"
#include "host/device/sizes.hpp"

namespace xeflash {

enum class ScoreHooks : uint32_t {};  // bits of kScoreHooks (score_hooks.hpp)
enum class MaskKind : uint8_t {};     // a row of kMasks there

// Everything that changes the code of a kernel; Desc in tune/desc.py explains it. All else
// (lengths, strides, masks by position) is a parameter.
struct Desc {
  Algorithm algorithm = Algorithm::flash_fwd;
  DType dtype = DType::kOther;
  uint16_t head_dim = 0, head_dim_v = 0;
  uint8_t rows = 0;
  ScoreHooks hooks{};
  DType bias = DType::kOther;  // kOther: none
  ScoreModId score_mod = ScoreModId::kNone, mask_mod = ScoreModId::kNone;
  MaskKind mask{};
  bool dropout = false, packed_heads = false, split_keys = false;
  CacheKind cache = CacheKind::kPlain;
  uint8_t page_unit = kPageKeys;
  DType cache_dtype = DType::kOther;  // kOther: dtype
  bool cache_scales = false, nibbles = false, unified_max = false;
  DType bias_gradient = DType::kOther;  // kOther: not wanted
  bool sums_slopes = false, adds_up = false;
  uint8_t learned = 0;
  Access access = Access::kNone;

  // Returns whether only the scale changes products to scores: ScoreVariant::kIdentity.
  bool has_plain_scores() const {
    return hooks == ScoreHooks{} && bias == DType::kOther && score_mod == ScoreModId::kNone;
  }
  // Returns whether a kernel reads captures, of which ScoreModParams has two kinds.
  bool has_snippets() const {
    return score_mod != ScoreModId::kNone || mask_mod != ScoreModId::kNone;
  }
  bool operator==(const Desc&) const = default;
};

XF_FIELDS(Desc, algorithm, dtype, head_dim, head_dim_v, rows, hooks, bias, score_mod, mask_mod,
          mask, dropout, packed_heads, split_keys, cache, page_unit, cache_dtype, cache_scales,
          nibbles, unified_max, bias_gradient, sums_slopes, adds_up, learned, access);

py::object to_python(ScoreHooks hooks);
py::object to_python(MaskKind mask);
py::object to_python(ScoreModId id);

// Returns the description of an algorithm on these arrays, without features.
Desc describe(Algorithm algorithm, const Problem& problem);
// Adds to a description the changes to scores and probabilities.
void describe_scores(Desc& desc, const Problem& problem, const FwdRequest& request);

const Kernels& find_kernels(const Desc& desc, const Place& place);
// Returns the kernels of a description. If they cannot be compiled, it returns those of
// `stand_in(desc)`, and sets `desc` to that.
template <class StandIn>
const Kernels& find_kernels_or(StandIn stand_in, Desc& desc, const Place& place);

// Returns the kernels of a description, or null if they are not there and cannot be compiled.
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

// Returns the number of work-groups of a kernel whose threads own blocks of rows; refuses more than
// a GPU can count.
uint64_t groups_for(const Desc& desc, const Kernels& kernels, int64_t rows, int64_t heads);

}  // namespace xeflash
