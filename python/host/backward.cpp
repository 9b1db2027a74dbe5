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
  XF_REQUIRE(check, g.lse.is_packed(), "lse", "must be contiguous", "strides", g.lse);
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

py::object result(const Array& a) { return a.data || a.object ? a.object : py::none(); }

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

  const bool wants_keys = g.wants("k") || g.wants("v");
  Array dq, dk, dv;
  if (g.wants("q")) dq = empty_like(p.q);
  if (g.wants("k")) dk = empty_like(p.k);
  if (g.wants("v")) dv = empty_like(p.v);
  py::tuple results =
      py::make_tuple(result(dq), result(dk), result(dv), py::none(), py::none(), py::none());

  const Access access =
      access_for(p, {{&g.out, p.dv}, {&g.dout, p.dv}, {&dq, p.d}}, {{&dk, p.d}, {&dv, p.dv}},
                 r.layout, QueryRows::kOfHead, place.device.facts.arch);
  if (access != Access::kNone) {
    check_mask_strides(p);
    refuse_far_rows(p, {{&g.out, "out"}, {&g.dout, "dout"}}, r.layout, QueryRows::kOfHead, check);
  }
  const bool queries = p.has_queries();
  const bool keys = wants_keys && p.batch * p.heads_k * p.sk != 0;
  const Desc of_q = describe(Algorithm::kBackwardQ, p, r, place, access);
  const Desc of_k = describe(Algorithm::kBackwardK, p, r, place, access);
  const Kernels* q_kernels = queries ? &find_kernels(of_q, place) : nullptr;
  const Kernels* k_kernels = keys ? &find_kernels(of_k, place) : nullptr;
  if (!q_kernels && !k_kernels) return results;

  BwdParams params{};
  static_cast<FwdParams&>(params) = params_of(p, r, g.out, g.lse, place);
  params.captures = p.score_mod.captures;
  const auto arg = [&](const Array& a) { return a.data ? tensor_arg(a, r.layout) : TensorArg{}; };
  params.dout = tensor_arg(g.dout, r.layout);
  params.dq = arg(dq);
  params.dk = arg(dk);
  params.dv = arg(dv);
  if (g.dlse.data) {
    const int row = g.dlse.ndim - 1;
    params.dlse = reinterpret_cast<const float*>(g.dlse.data);
    params.dlse_batch = row == 2 ? g.dlse.strides[0] : 0;
    params.dlse_head = g.dlse.strides[row - 1];
    params.dlse_row = g.dlse.strides[row];
  }
  const Scratch delta(place, p.q,
                      std::max<int64_t>(1, params.lse_head * p.heads_q * (p.packed ? 1 : p.batch)));
  params.delta = delta.data;
  const uint64_t q_groups = q_kernels ? groups_for(of_q, *q_kernels, p.sq, p.batch * p.heads_q) : 0;
  const uint64_t k_groups = k_kernels ? groups_for(of_k, *k_kernels, p.sk, p.batch * p.heads_k) : 0;
  submit(place, [&](Launcher& launch) {
    if (p.used_k.data) {  // the keys that are not in use
      for (const Array* a : {&dk, &dv}) launch.clear(*a);
    }
    if (q_kernels) launch(*q_kernels->entries[0], params, q_groups, q_kernels->threads);
    if (k_kernels) launch(*k_kernels->entries[0], params, k_groups, k_kernels->threads);
  });
  return results;
}

}  // namespace xeflash
