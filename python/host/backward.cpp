#include "backward.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "arguments.hpp"
#include "kernels.hpp"
#include "params.hpp"
#include "problem.hpp"
#include "schedule.hpp"

namespace xeflash {
namespace {

// What a call has besides the forward's arguments.
struct Gradients {
  Array out, lse, dout, dlse;  // of the forward; dlse without data: 0
  std::set<std::string> wanted;

  bool wants(const char* name) const { return wanted.count(name) > 0; }
};

py::object take(py::dict& arguments, const char* name) {
  if (!arguments.contains(name)) return py::none();
  const py::object value = arguments[name];
  PyDict_DelItemString(arguments.ptr(), name);
  return value;
}

// An array of the shape of the output.
Array read_like_out(const py::object& object, const char* name, const Problem& p,
                    const Checker& check) {
  const char* f = check.function();
  Array a = with_contiguous_rows(read_array(object, f, name), f, name);
  XF_REQUIRE_DTYPE(check, a.dtype == p.q.dtype, a, name,
                   std::string("must have the dtype of ") + p.q_name);
  check.require_same_place(a, name, p.q, p.q_name);
  bool fits = a.ndim == p.q.ndim && a.shape[a.ndim - 1] == p.dv;
  for (int i = 0; fits && i < a.ndim - 1; ++i) fits = a.shape[i] == p.q.shape[i];
  XF_REQUIRE(
      check, fits, name,
      std::string("must have the shape of ") + p.q_name + " with head_dim " + std::to_string(p.dv),
      a.describe_shape(), a);
  return a;
}

// A float32 array of the shape of the LSE.
Array read_like_lse(const py::object& object, const char* name, const Problem& p,
                    const Checker& check) {
  const char* f = check.function();
  Array a = with_whole_strides(read_array(object, f, name), f, name);
  XF_REQUIRE_DTYPE(check, a.dtype == DType::kF32, a, name, "must be float32");
  check.require_same_place(a, name, p.q, p.q_name);
  const bool fits = p.packed ? a.ndim == 2 && a.shape[0] == p.heads_q && a.shape[1] == p.tokens_q
                             : a.ndim == 3 && a.shape[0] == p.batch && a.shape[1] == p.heads_q &&
                                   a.shape[2] == p.sq;
  XF_REQUIRE(check, fits, name, "must have the shape of the log-sum-exp", a.describe_shape(), a);
  return a;
}

Gradients read_gradients(py::dict& given, const FwdRequest& r, const Problem& p,
                         const Checker& check) {
  Gradients g;
  g.out = read_like_out(r.out, "out", p, check);
  g.lse = read_like_lse(take(given, "lse"), "lse", p, check);
  XF_REQUIRE(check, g.lse.is_empty() || g.lse.is_packed(), "lse", "must be contiguous", "strides",
             g.lse);
  g.dout = read_like_out(take(given, "dout"), "dout", p, check);
  if (const py::object dlse = take(given, "dlse"); !dlse.is_none()) {
    g.dlse = read_like_lse(dlse, "dlse", p, check);
  }
  for (const py::handle name : take(given, "wanted")) g.wanted.insert(name.cast<std::string>());
  return g;
}

// What has no gradient.
void refuse_caches(const Problem& p, const FwdRequest& r, const Checker& check) {
  if (p.cache.given)
    check.refuse<NotImplemented>("the backward pass is not there for caches of keys and values");
  const int batch = axes_of(r.layout).batch;
  if (batch >= 0 && (p.k.shape[batch] != p.batch || p.v.shape[batch] != p.batch))
    check.refuse<NotImplemented>(std::string(p.k_name) + ".batch must equal " + p.q_name +
                                 ".batch (" + std::to_string(p.batch) +
                                 ") for the backward pass, got " +
                                 std::to_string(p.k.shape[batch]));
}

Array new_bias_gradient(const Problem& p, const Checker& check) {
  if (p.score_mod.id != ScoreModId::kNone)
    check.refuse<NotImplemented>("attn_mask with score_mod has no gradient yet");
  const auto& s = p.bias.shape;
  if (p.bias.ndim != 4 || s[0] != p.batch || s[1] != p.heads_q || s[2] != p.sq || s[3] != p.sk)
    check.refuse<NotImplemented>(
        "attn_mask must have the shape of the scores for a gradient, got " +
        p.bias.describe_shape());
  return new_array(p.q, p.bias.dtype, {s[0], s[1], s[2], s[3]});
}

Desc describe(Algorithm algorithm, const Problem& p, const FwdRequest& r, const Place& place,
              Access access) {
  Desc desc = describe(algorithm, p);
  describe_scores(desc, p, r);
  desc.rows = rows_for(desc, p, schedule_of(place.device));
  desc.access = access;
  return desc;
}

Array empty_like(const Array& a) {
  const auto& s = a.shape;
  if (a.ndim == 3) return new_array(a, a.dtype, {s[0], s[1], s[2]});
  return new_array(a, a.dtype, {s[0], s[1], s[2], s[3]});
}

py::object result(const Array& a) { return a.object ? a.object : py::none(); }

}  // namespace

py::tuple backward(const py::kwargs& arguments) {
  py::dict given = py::reinterpret_steal<py::dict>(PyDict_Copy(arguments.ptr()));
  py::dict own;  // the others' are the forward's
  for (const char* name : {"lse", "dout", "dlse", "wanted"}) own[name] = take(given, name);
  const FwdRequest r = read_arguments(py::reinterpret_borrow<py::kwargs>(given));
  const Checker check(r.function);
  const Problem p = read_problem(r);
  const Place place = place_of(p.q);
  refuse_to_wait_while_recording(place, p.q, p.q_name, check);
  const Gradients g = read_gradients(own, r, p, check);
  refuse_caches(p, r, check);

  Array dq, dk, dv, dalibi, dsinks;
  if (g.wants("q")) dq = empty_like(p.q);
  if (g.wants("k")) dk = empty_like(p.k);
  if (g.wants("v")) dv = empty_like(p.v);
  if (!r.alibi.is_none() && g.wants("alibi_slopes")) {
    if (p.score_mod.id != ScoreModId::kNone)
      check.refuse<NotImplemented>("alibi_slopes with score_mod have no gradient yet");
    dalibi = p.alibi.ndim == 2 ? new_array(p.q, DType::kF32, {p.batch, p.heads_q})
                               : new_array(p.q, DType::kF32, {p.heads_q});
  }
  if (!r.sinks.is_none() && g.wants("s_aux")) dsinks = new_array(p.q, DType::kF32, {p.heads_q});
  Array dbias;
  if (!r.bias.is_none() && g.wants("attn_mask")) dbias = new_bias_gradient(p, check);
  py::tuple results = py::make_tuple(result(dq), result(dk), result(dv), result(dbias),
                                     result(dalibi), result(dsinks));

  const Access access =
      access_for(p, {{&g.out, p.dv}, {&g.dout, p.dv}, {&dq, p.d}}, {{&dk, p.d}, {&dv, p.dv}},
                 r.layout, QueryRows::kOfHead, place.device.facts.arch);
  if (access != Access::kNone) {
    check_mask_strides(p);
    refuse_far_rows(p, {{&g.out, "out"}, {&g.dout, "dout"}}, r.layout, QueryRows::kOfHead, check);
  }
  // The kernels of a call, in their order; those of keys and heads read what the first one leaves.
  struct Part {
    const Kernels* kernels = nullptr;
    uint64_t groups = 0;
    int threads = 1;
  };
  const auto part = [&](Algorithm algorithm, int64_t rows, int64_t heads) {
    Desc desc = describe(algorithm, p, r, place, access);
    if (algorithm == Algorithm::kBackwardQ && dbias.data) desc.bias_gradient = dbias.dtype;
    desc.sums_slopes = algorithm == Algorithm::kBackwardQ && dalibi.data;
    const Kernels& kernels = find_kernels(desc, place);
    if (algorithm == Algorithm::kBackwardHeads) return Part{&kernels, static_cast<uint64_t>(heads)};
    return Part{&kernels, groups_for(desc, kernels, rows, heads), kernels.threads};
  };
  const bool keys = p.batch * p.heads_k * p.sk != 0;
  Part of_queries, of_keys, of_heads;
  if (p.has_queries()) of_queries = part(Algorithm::kBackwardQ, p.sq, p.batch * p.heads_q);
  if (keys && (dk.data || dv.data))
    of_keys = part(Algorithm::kBackwardK, p.sk, p.batch * p.heads_k);
  if (dalibi.data || dsinks.data) of_heads = part(Algorithm::kBackwardHeads, 1, p.heads_q);

  BwdParams params{};
  static_cast<FwdParams&>(params) = params_of(p, r, g.out, g.lse, place);
  params.captures = p.score_mod.captures;
  const auto arg = [&](const Array& a) { return a.data ? tensor_arg(a, r.layout) : TensorArg{}; };
  params.dout = tensor_arg(g.dout, r.layout);
  params.dq = arg(dq);
  params.dk = arg(dk);
  params.dv = arg(dv);
  if (dbias.data)
    params.dbias = {dbias.data, dbias.strides[0], dbias.strides[1], dbias.strides[2], 1};
  params.dalibi = reinterpret_cast<float*>(dalibi.data);
  params.dalibi_batch = p.alibi.ndim == 2 ? p.heads_q : 0;
  params.dsinks = reinterpret_cast<float*>(dsinks.data);
  if (g.dlse.data) {
    const int row = g.dlse.ndim - 1;
    params.dlse = reinterpret_cast<const float*>(g.dlse.data);
    params.dlse_batch = row == 2 ? g.dlse.strides[0] : 0;
    params.dlse_head = g.dlse.strides[row - 1];
    params.dlse_row = g.dlse.strides[row];
  }
  const int64_t rows = std::max<int64_t>(1, p.heads_q * (p.packed ? p.tokens_q : p.batch * p.sq));
  const Scratch scratch(place, p.q, rows * (dalibi.data ? 2 : 1));
  params.delta = scratch.data;
  params.row_slopes = scratch.data + rows;
  submit(place, [&](Launcher& launch) {
    launch.clear(dbias);  // where blocks of keys are not seen
    if (p.used_k.data) {  // the keys that are not in use
      for (const Array* a : {&dk, &dv}) launch.clear(*a);
    }
    for (const Part& one : {of_queries, of_keys, of_heads}) {
      if (one.kernels) launch(*one.kernels->entries[0], params, one.groups, one.threads);
    }
  });
  return results;
}

}  // namespace xeflash
