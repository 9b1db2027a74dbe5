#include "host/attention/desc.hpp"

#include <atomic>

#include "host/attention/score_hooks.hpp"

namespace xeflash {

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

Desc describe(Algorithm algorithm, const Problem& p) {
  Desc desc;
  desc.algorithm = algorithm;
  desc.dtype = p.q.dtype;
  desc.head_dim = static_cast<uint16_t>(p.d);
  desc.head_dim_v = static_cast<uint16_t>(p.dv);
  desc.cache = p.cache.kind;
  desc.cache_dtype = p.k.dtype == p.q.dtype ? DType::kOther : p.k.dtype;
  desc.cache_scales = p.cache.k_scale.data != nullptr;
  desc.nibbles = p.v.dtype == DType::kU8;
  return desc;
}

void describe_scores(Desc& desc, const Problem& p, const FwdRequest& r) {
  uint32_t hooks = 0, bit = 1;
  for (const ScoreHook& hook : kScoreHooks) hooks |= hook.used(p, r) ? bit : 0, bit <<= 1;
  desc.hooks = ScoreHooks{hooks};
  desc.bias = p.bias.data ? p.bias.dtype : DType::kOther;
  desc.score_mod = p.score_mod.id;
  desc.mask_mod = p.mask_mod.id;
  for (const ScoreHook& mask : kMasks) {
    if (mask.used(p, r)) desc.mask = static_cast<MaskKind>(&mask - kMasks);
  }
  desc.dropout = r.dropout_p > 0;
}

const Kernels& find_kernels(const Desc& desc, const Place& place) {
  return find_kernels<Desc>(desc, place);
}

const Kernels* kernels_if_there(const Desc& desc, const Place& place) {
  return look_up(desc, place).kernels;
}

void say_that_another_serves(const Desc& desc, const Place& place) {
  static std::atomic<bool> said = false;
  if (said.exchange(true)) return;
  std::string text = look_up(desc, place).reason;
  text +=
      ". Another kernel, of the package, serves this call, and may be slower; this is said once";
  if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) < 0) throw py::error_already_set();
}

uint64_t groups_for(const Desc& desc, const Kernels& kernels, int64_t rows, int64_t heads) {
  const uint64_t blocks = (rows + kernels.rows_in_group - 1) / kernels.rows_in_group;
  const uint64_t groups = static_cast<uint64_t>(heads) * blocks * kernels.groups_of_rows;
  check_groups(groups, desc.access);
  return groups;
}

}  // namespace xeflash
