#include "kernels.hpp"

#include <pybind11/stl.h>

#include <atomic>
#include <cmath>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "checks.hpp"
#include "native.hpp"
#include "score_hooks.hpp"

namespace xeflash {
namespace {

py::object& provider() {
  static auto* object = new py::object;
  return *object;
}

constexpr const auto& fields_of(const Desc&) { return kDescFields; }
constexpr const auto& fields_of(const ProductDesc&) { return kProductFields; }
constexpr const auto& fields_of(const SoftmaxDesc&) { return kSoftmaxFields; }

template <class AnyDesc>
struct Key {
  const Device* device;
  AnyDesc desc;

  bool operator==(const Key&) const = default;
};

struct Hash {
  template <class AnyDesc>
  size_t operator()(const Key<AnyDesc>& key) const {
    auto hash = reinterpret_cast<uintptr_t>(key.device);
    const auto add = [&](auto value) { hash = hash * 31 + static_cast<uintptr_t>(value); };
    std::apply([&](const auto&... f) { (add(key.desc.*f.member), ...); }, fields_of(key.desc));
    return hash;
  }
};

// A field of a description as Python has it.
template <class T>
py::object to_python(T value) {
  if constexpr (std::is_arithmetic_v<T>)
    return py::cast(value);
  else
    return py::str(name_of(value));
}
py::object to_python(DType value) {
  return value == DType::kOther ? py::object(py::none()) : py::str(name_of(value));
}
py::object to_python(ScoreHooks hooks) {
  py::list names;
  uint32_t bits = static_cast<uint32_t>(hooks);
  for (const ScoreHook& hook : kScoreHooks) {
    if (bits & 1) names.append(hook.name);
    bits >>= 1;
  }
  return py::tuple(names);
}
py::object to_python(MaskKind mask) { return py::str(kMasks[static_cast<uint8_t>(mask)].name); }
py::object to_python(ScoreModId id) {
  if (id == ScoreModId::kNone) return py::none();
  const ScoreModSource& source = score_mod_source(id);
  py::list captures;
  for (const auto& c : source.captures) captures.append(py::make_tuple(c.name, c.type, c.rank));
  return py::make_tuple(source.text, py::tuple(captures));
}

template <class AnyDesc>
py::dict describe_to_python(const AnyDesc& desc, const DeviceFacts& device) {
  py::dict all;
  std::apply([&](const auto&... f) { ((all[f.name] = to_python(desc.*f.member)), ...); },
             fields_of(desc));
  all["arch"] = device.arch;
  all["device"] = device.name;
  all["driver"] = device.driver;
  return all;
}

constexpr std::tuple kSizes{
    Field{"block_q", &Kernels::block_q},
    Field{"block_k", &Kernels::block_k},
    Field{"rows_in_group", &Kernels::rows_in_group},
    Field{"block_v", &Kernels::block_v},
    Field{"groups_of_rows", &Kernels::groups_of_rows},
    Field{"threads", &Kernels::threads},
    Field{"turns", &Kernels::turns},
};

}  // namespace

const char* name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kForward:
      return "flash_fwd";
    case Algorithm::kDecode:
      return "flash_decode";
    case Algorithm::kBackwardQ:
      return "flash_bwd_dq";
    case Algorithm::kBackwardK:
      return "flash_bwd_dkv";
    case Algorithm::kBackward:
      return "flash_bwd";
    case Algorithm::kBackwardBias:
      return "flash_bwd_bias";
    case Algorithm::kBackwardCaptures:
      return "flash_bwd_captures";
    case Algorithm::kBackwardHeads:
      return "flash_bwd_heads";
    case Algorithm::kProbabilities:
      return "attention_probs";
    case Algorithm::kDocumentSpans:
      return "document_spans";
    case Algorithm::kAppend:
      return "append";
    case Algorithm::kMergeStates:
      return "merge_states";
    case Algorithm::kLinear:
      return "linear";
    case Algorithm::kMatmulSoftmax:
      return "matmul_softmax";
    case Algorithm::kLinearCrossEntropy:
      return "linear_cross_entropy";
    case Algorithm::kLogitSlopes:
      return "logit_slopes";
    case Algorithm::kMatmulAdd:
      return "matmul_add";
    case Algorithm::kLinearTopK:
      return "linear_top_k";
    case Algorithm::kSampleTokens:
      return "sample_tokens";
    default:
      return "standard_attention";
  }
}

Desc describe(Algorithm algorithm, const Problem& p) {
  Desc desc;
  desc.algorithm = algorithm;
  desc.dtype = p.q.dtype;
  desc.head_dim = static_cast<uint16_t>(p.d);
  desc.head_dim_v = static_cast<uint16_t>(p.dv);
  desc.cache = p.cache.kind;
  desc.cache_dtype = p.k.dtype == p.q.dtype ? DType::kOther : p.k.dtype;
  desc.cache_scales = p.cache.k_scale.data != nullptr;
  return desc;
}

void describe_scores(Desc& desc, const Problem& p, const FwdRequest& r) {
  uint32_t hooks = 0, bit = 1;
  for (const ScoreHook& hook : kScoreHooks) hooks |= hook.used(p, r) ? bit : 0, bit <<= 1;
  desc.hooks = ScoreHooks{hooks};
  desc.bias = p.bias.data ? p.bias.dtype : DType::kOther;
  desc.score_mod = p.score_mod.id;
  for (const ScoreHook& mask : kMasks) {
    if (mask.used(p, r)) desc.mask = static_cast<MaskKind>(&mask - kMasks);
  }
  desc.dropout = r.dropout > 0;
}

void set_kernel_provider(py::object object) { provider() = std::move(object); }

// Whether calls have looked a kernel up since used_kernels() was asked last.
struct Use {
  std::string name;
  std::atomic<bool> again{true};
};
std::vector<std::shared_ptr<Use>>& uses() {
  static auto& all = *new std::vector<std::shared_ptr<Use>>;
  return all;
}

std::vector<std::string> used_kernels() {
  std::vector<std::string> names;
  for (const auto& use : uses()) {
    if (use->again.exchange(false)) names.push_back(use->name);
  }
  return names;
}

// What a description has: kernels, or the reason why there are none.
struct Found {
  const Kernels* kernels;
  std::string reason;
  std::shared_ptr<Use> use;
};

// The error of a machine that has nothing to compile kernels with.
py::object no_compiler() { return py::module_::import("xeflash.jit.headers").attr("NoCompiler"); }

template <class AnyDesc>
const Found& rehearse(const AnyDesc& desc, Rehearsal& rehearsal) {
  struct Sizes {
    Kernels kernels;
    Found found{&kernels, "", nullptr};
  };
  const auto sizes = std::make_shared<Sizes>();
  const py::tuple made = rehearsal.provider(describe_to_python(desc, rehearsal.device.facts));
  for (const auto& name : made[0].cast<std::vector<std::string>>()) {
    const Entry entry{name, nullptr, rehearsal.kept.size()};
    sizes->kernels.entries.push_back(std::make_shared<Entry>(entry));
  }
  read(sizes->kernels, made[1], kSizes);
  rehearsal.kept.push_back(sizes);
  return sizes->found;
}

template <class AnyDesc>
const Found& find_any(const AnyDesc& desc, const Place& place) {
  if (Rehearsal* rehearsal = Rehearsal::current()) return rehearse(desc, *rehearsal);
  static auto& table = *new std::unordered_map<Key<AnyDesc>, Found, Hash>;
  static std::mutex mutex;
  const Key<AnyDesc> key{&place.device, desc};
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (const auto it = table.find(key); it != table.end()) {
      it->second.use->again.store(true, std::memory_order_relaxed);
      return it->second;
    }
  }
  const DeviceFacts& facts = place.device.facts;
  if (facts.arch.empty()) throw NotImplemented(facts.no_kernels);
  if (!provider())
    throw std::runtime_error(
        "xeflash._core: no kernel provider; import xeflash, not its extension");
  auto* kernels = new Kernels;
  std::string reason;
  const auto use = std::make_shared<Use>();
  auto load = [&](bool again) {
    const py::dict description = describe_to_python(desc, facts);
    const py::object provided =
        provider()(description, reinterpret_cast<uintptr_t>(&place.queue), again);
    const py::tuple made(provided);
    const auto native = made[0].cast<std::string>();
    const auto entries = made[1].cast<std::vector<std::string>>();
    read(*kernels, made[2], kSizes);
    use->name = made[3].cast<std::string>();
    kernels->entries.clear();
    py::gil_scoped_release nogil;
    for (const std::string& entry : entries) {
      const Entry loaded{entry, load_kernel(place.queue, native, entry)};
      kernels->entries.push_back(std::make_shared<Entry>(loaded));
    }
  };
  try {
    load(false);
  } catch (const RefusedBinary&) {
    load(true);
  } catch (const py::error_already_set& error) {
    if (!error.matches(no_compiler())) throw;
    reason = py::str(error.value()).cast<std::string>();
  }
  std::lock_guard<std::mutex> lock(mutex);
  if (reason.empty()) uses().push_back(use);
  return table.emplace(key, Found{reason.empty() ? kernels : nullptr, reason, use}).first->second;
}

template <class AnyDesc>
const Kernels& find_or_throw(const AnyDesc& desc, const Place& place) {
  const Found& found = find_any(desc, place);
  if (!found.kernels) {
    py::set_error(no_compiler(), found.reason.c_str());
    throw py::error_already_set();
  }
  return *found.kernels;
}

const Kernels& find_kernels(const Desc& desc, const Place& place) {
  return find_or_throw(desc, place);
}
const Kernels& find_kernels(const ProductDesc& desc, const Place& place) {
  return find_or_throw(desc, place);
}
const Kernels& find_kernels(const SoftmaxDesc& desc, const Place& place) {
  return find_or_throw(desc, place);
}

const Kernels* kernels_if_there(const Desc& desc, const Place& place) {
  return find_any(desc, place).kernels;
}

void say_that_another_serves(const Desc& desc, const Place& place) {
  static std::atomic<bool> said = false;
  if (said.exchange(true)) return;
  std::string text = find_any(desc, place).reason;
  text +=
      ". Another kernel, of the package, serves this call, and may be slower; this is said once";
  if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) < 0) throw py::error_already_set();
}

void check_groups(uint64_t groups, Access access) {
  if (access == Access::kNone || groups <= UINT32_MAX) return;
  throw py::value_error(
      "xeflash: batch x heads x blocks of rows must be below 2^32 on a GPU, got " +
      std::to_string(groups));
}

uint64_t groups_for(const Desc& desc, const Kernels& kernels, int64_t rows, int64_t heads) {
  const uint64_t blocks = (rows + kernels.rows_in_group - 1) / kernels.rows_in_group;
  const uint64_t groups = static_cast<uint64_t>(heads) * blocks * kernels.groups_of_rows;
  check_groups(groups, desc.access);
  return groups;
}

}  // namespace xeflash
