#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "host/arrays/place.hpp"
#include "host/attention/desc.hpp"
#include "host/attention/functions.hpp"
#include "host/attention/params.hpp"
#include "host/attention/part.hpp"
#include "host/attention/prepass.hpp"
#include "host/attention/problem.hpp"
#include "host/attention/request.hpp"
#include "host/attention/schedule.hpp"
#include "host/device/fields.hpp"

namespace xeflash {
namespace {

// The arrays of the gradients. An array has no data if its gradient is not wanted.
struct Results {
  Array dq, dk, dv, dbias, dalibi, dsinks;
  Array dcaptures;      // of the captured arrays that want one, one after the other
  uint8_t learned = 0;  // these, a bit each
  std::array<int32_t, kMaxCapturedArrays> first_of_capture{};

  py::tuple objects() const;
  Extents extents_of_bias() const {
    if (!dbias.data) return {};
    const auto size = [&](int axis) { return static_cast<int32_t>(dbias.shape[axis]); };
    return {size(0), size(1), size(2), size(3)};
  }
};

// Each gradient with the name of its array, in the order in which backward() returns them. The
// gradients of captures, "captures['NAME']", follow in one array.
constexpr std::tuple kGradients{
    Field{"q", &Results::dq},
    Field{"k", &Results::dk},
    Field{"v", &Results::dv},
    Field{"attn_mask", &Results::dbias},
    Field{"alibi_slopes", &Results::dalibi},
    Field{"s_aux", &Results::dsinks},
};
static_assert(is_complete<3>(kGradients));  // and what there is of captures

py::tuple Results::objects() const {
  const auto object = [](const Array& a) { return a.object ? a.object : py::none(); };
  const auto all = [&](const auto&... f) {
    return py::make_tuple(object(this->*f.member)..., object(dcaptures));
  };
  return std::apply(all, kGradients);
}

std::string name_of_capture(const std::string& name) { return "captures['" + name + "']"; }

bool has_gradient(const std::string& name, const Problem& p) {
  const auto knows = [&](const auto&... f) { return ((name == f.name) || ...); };
  const auto is_captured = [&](const auto& own) { return name == name_of_capture(own); };
  return std::apply(knows, kGradients) || std::ranges::any_of(p.score_mod.names, is_captured);
}

// The arguments of a call that forward() does not have: BackwardArguments in call/schema.py has the
// same.
struct BwdRequest {
  py::object lse = py::none(), dout = py::none(), dlse = py::none();
  py::object delta = py::none();                                 // in the place of `out` and dlse
  py::object dq = py::none(), dk = py::none(), dv = py::none();  // fp32, to be added to
  bool longer = false;  // out and lse are of rows of more keys than these
  py::object wanted = py::tuple();
};
XF_FIELDS(BwdRequest, lse, dout, dlse, delta, dq, dk, dv, longer, wanted);

// The gradients' own arguments after they were checked.
struct Gradients {
  Outputs forward_outputs;
  Array dout, dlse;     // dlse without data: 0
  Array delta;          // with data: there is no output, and no dlse
  Array dq, dk, dv;     // with data: to be added to
  bool longer = false;  // the outputs are of rows of more keys than these
  std::set<std::string> wanted;

  bool wants(const char* name) const { return wanted.count(name) > 0; }
  bool adds_up() const { return dq.object || dk.object || dv.object; }
};

// Takes the backward pass's own arguments out of those of a call. The others are the forward's,
// whose reader refuses unknown ones.
template <class... T>
BwdRequest take_own(py::dict& arguments, const std::tuple<Field<BwdRequest, T>...>& fields) {
  BwdRequest own;
  const auto take = [&]<class U>(const Field<BwdRequest, U>& f) {
    if (!arguments.contains(f.name)) return;
    own.*f.member = arguments[f.name].template cast<U>();
    PyDict_DelItemString(arguments.ptr(), f.name);
  };
  std::apply([&](const auto&... f) { (take(f), ...); }, fields);
  return own;
}

// Reads an array that must have the shape of the output.
Array read_like_out(const py::object& object, const char* name, const Problem& p,
                    const Checker& check) {
  Array a = read_rows(object, check, name);
  XF_REQUIRE_DTYPE(check, a.dtype == p.q.dtype, a, name,
                   "must have the dtype of " + check.word("q"));
  check.require_same_place(a, name, p.q, "q");
  check_like_out(a, name, p, check);
  return a;
}

Gradients read_gradients(const BwdRequest& own, const FwdRequest& r, const Problem& p,
                         const Checker& check) {
  Gradients g;
  if (own.delta.is_none()) {
    g.forward_outputs.out = read_like_out(r.out, "out", p, check);
  } else {
    g.delta = read_lse(own.delta, "delta", p, check);
    for (const auto& [object, name] :
         {std::pair{&r.out, "out"}, {&r.residual, "residual"}, {&own.dlse, "dlse"}}) {
      if (!object->is_none())
        check.refuse(name, "must be None with " + check.word("delta") + ", got an array");
    }
  }
  if (!r.residual.is_none()) {
    g.forward_outputs.residual = read_like_out(r.residual, "residual", p, check);
    check_residual(g.forward_outputs.residual, check);
  }
  g.forward_outputs.lse = read_lse(own.lse, "lse", p, check);
  g.dout = read_like_out(own.dout, "dout", p, check);
  if (!own.dlse.is_none()) g.dlse = read_like_lse(own.dlse, "dlse", p, check);
  g.longer = own.longer;
  for (const py::handle handle : own.wanted) {
    const auto name = handle.cast<std::string>();
    if (!has_gradient(name, p))
      check.refuse("wanted", "must be names of arrays that have gradients, got '" + name + "'");
    g.wanted.insert(name);
  }
  const auto take_sum = [&](const py::object& object, Array& to, const char* name,
                            const Array& like, const char* learned, const char* like_name) {
    if (object.is_none()) return;
    if (!g.wants(learned))
      check.refuse(name, "must be None unless " + check.word("wanted") + " has '" + learned +
                             "', got an array");
    to = read_sum(object, name, like, like_name, p, check);
  };
  take_sum(own.dq, g.dq, "dq", p.q, "q", "q");
  take_sum(own.dk, g.dk, "dk", p.k, "k", p.k_name());
  take_sum(own.dv, g.dv, "dv", p.v, "v", p.v_name());
  for (const auto& [sum, name, learned] :
       {std::tuple{&g.dq, "dq", "q"}, {&g.dk, "dk", "k"}, {&g.dv, "dv", "v"}}) {
    if (g.adds_up() && g.wants(learned) && !sum->object)
      check.refuse(name, "must be given where others are added to, got None");
  }
  return g;
}

// Refuses calls whose keys have no gradient: those of a cache, or those of another batch than q.
void refuse_caches(const Problem& p, const FwdRequest& r, const Checker& check) {
  if (p.cache.given)
    check.refuse<NotImplemented>(
        p.k_name(),
        "must not be a cache for the backward pass, as gradients of caches are not there, got "
        "shape " +
            p.k.describe_shape());
  const int batch = axes_of(r.layout).batch;
  if (batch >= 0 && (p.k.shape[batch] != p.batch || p.v.shape[batch] != p.batch))
    check.refuse<NotImplemented>(
        p.k_name(), ".batch must equal " + check.word("q") + ".batch (" + std::to_string(p.batch) +
                        ") for the backward pass, got " + std::to_string(p.k.shape[batch]));
}

// Returns a new array for the gradient of a bias. It has the shape of the bias with four axes, but
// a bias without rows and keys has a sum for each row.
Array new_bias_gradient(const Problem& p) {
  const auto size = [&](int axis) {
    const int at = axis + p.bias.ndim - 4;
    return at < 0 ? 1 : p.bias.shape[at];
  };
  const int64_t keys = size(3), rows = keys == 1 ? p.sq : size(2);
  const DType dtype = rows == 1 || keys == 1 ? DType::kF32 : p.bias.dtype;  // of sums
  return new_array(p.q, dtype, {size(0), size(1), rows, keys});
}

Array empty_like(const Array& a) {
  const auto& s = a.shape;
  if (a.ndim == 3) return new_array(a, a.dtype, {s[0], s[1], s[2]});
  return new_array(a, a.dtype, {s[0], s[1], s[2], s[3]});
}

void new_gradients_of_captures(Results& to, const Problem& p, const Gradients& g,
                               const Checker& check) {
  int64_t total = 0;
  int i = 0;
  for (const Array& a : p.score_mod.arrays) {
    const std::string& name = p.score_mod.names[i];
    if (g.wants(name_of_capture(name).c_str())) {
      to.learned |= 1 << i;
      to.first_of_capture[i] = static_cast<int32_t>(total);
      total += bytes_of(a) / size_of(a.dtype);
      if (total > kMostLearned)
        check.refuse<NotImplemented>("captures that require grad must have at most " +
                                     std::to_string(kMostLearned) + " elements together, got " +
                                     std::to_string(total) + " up to captures['" + name + "']");
    }
    ++i;
  }
  if (total) to.dcaptures = new_array(p.q, DType::kF32, {total});
}

Results new_results(const Problem& p, const FwdRequest& r, const Gradients& g,
                    const Checker& check) {
  Results to;
  const auto sum_or_new = [](const Array& sum, const Array& like) {
    return sum.object ? sum : empty_like(like);
  };
  if (g.wants("q")) to.dq = sum_or_new(g.dq, p.q);
  if (g.wants("k")) to.dk = sum_or_new(g.dk, p.k);
  if (g.wants("v")) to.dv = sum_or_new(g.dv, p.v);
  if (!r.alibi_slopes.is_none() && g.wants("alibi_slopes")) {
    to.dalibi = p.alibi.ndim == 2 ? new_array(p.q, DType::kF32, {p.batch, p.heads_q})
                                  : new_array(p.q, DType::kF32, {p.heads_q});
  }
  if (!r.s_aux.is_none() && g.wants("s_aux")) to.dsinks = new_array(p.q, DType::kF32, {p.heads_q});
  if (!r.attn_mask.is_none() && g.wants("attn_mask")) to.dbias = new_bias_gradient(p);
  new_gradients_of_captures(to, p, g, check);
  return to;
}

// Returns the access with which kernels read and write all arrays of a call.
Access access_of(const Problem& p, const FwdRequest& r, const Gradients& g, const Results& to,
                 const Place& place, const Checker& check) {
  const Array &out = g.forward_outputs.out, &residual = g.forward_outputs.residual;
  Access access = access_for(p, {{&out, p.dv}, {&residual, p.dv}, {&g.dout, p.dv}, {&to.dq, p.d}},
                             {{&to.dk, p.d}, {&to.dv, p.dv}}, r.layout, QueryRows::kOfHead,
                             place.device.facts.arch);
  if (access != Access::kNone) {
    check_mask_strides(p, check);
    refuse_far_rows(p, {{&out, "out"}, {&residual, "residual"}, {&g.dout, "dout"}}, r.layout,
                    QueryRows::kOfHead, check);
  }
  // A block message then reads the LSE of a head as a matrix of one row.
  const bool fits = is_row_of_block2d((p.packed ? p.tokens_q : p.sq) * 4);
  return access == Access::kBlock2d && !fits ? Access::kDwords : access;
}

// A kernel of a call, with its launch.
struct Step {
  const Kernels* kernels;
  uint64_t groups;
  int entry = 0;
};

// Returns the number of workers among which the gradients of captures are divided.
int64_t workers_of_captures(const Problem& p, int64_t captured, const Kernels& kernels,
                            const Schedule& s) {
  const int64_t blocks = p.batch * p.heads_q * divide_up(p.sq, kernels.block_q);
  return std::clamp<int64_t>(s.capture_floats / captured, 1,
                             std::min<int64_t>(blocks, s.capture_workers));
}

// Returns the number of workers of the kernel that computes all gradients in one pass, or 0 if two
// kernels compute them. The one kernel has a work-item per head of keys, and computes each product
// once. The two kernels, for dQ and for dK and dV, compute two of five products twice, but have
// work for many cores. The last bits of dQ differ between the two ways, so the choice depends on
// the machine's cores, and not on those that a process may use.
int64_t workers_of_one_pass(const Problem& p, const Results& to, const Place& place) {
  const Schedule& s = schedule_of(place.device);
  if (!(p.q.dtype == DType::kBF16 ? s.one_pass_bf16 : s.one_pass)) return 0;
  if (!to.dq.data || !to.dk.data || !to.dv.data) return 0;
  const DeviceFacts& facts = place.device.facts;
  const int64_t heads = p.batch * p.heads_k,
                workers = std::min<int64_t>(heads, facts.compute_units);
  if (workers == 0 || !p.has_queries() || p.sk == 0) return 0;
  const int64_t cores = facts.cores, turns = divide_up(heads, cores);
  const int64_t sums = std::min(heads, cores) * (p.heads_q / p.heads_k) * p.sq * p.d;
  return 5 * turns * cores <= 7 * heads && sums <= s.one_pass_floats ? workers : 0;
}

uint8_t rows_of_backward(const Desc& desc, const Problem& p, const Schedule& s) {
  return std::max(rows_for(desc, p, s), static_cast<uint8_t>(s.backward_rows));
}

// Returns the kernels of a call in the order of their launches: the kernels of keys and of heads
// read what the first kernel stores.
std::vector<Step> steps_of(const Problem& p, const FwdRequest& r, const Results& to, bool adds_up,
                           int64_t workers, Access access, const Place& place) {
  std::vector<Step> steps;
  const Schedule& schedule = schedule_of(place.device);
  const auto described = [&](Algorithm algorithm) {
    Desc desc = describe(algorithm, p);
    describe_scores(desc, p, r);
    desc.adds_up =
        adds_up && (algorithm == Algorithm::flash_bwd || algorithm == Algorithm::flash_bwd_dq ||
                    algorithm == Algorithm::flash_bwd_dkv);
    desc.rows = rows_of_backward(desc, p, schedule);
    if (algorithm == Algorithm::flash_bwd_dq || algorithm == Algorithm::flash_bwd_dkv)
      desc.rows = rows_for_cores(desc, p, r, place.device);
    return desc;
  };
  const auto add = [&](Desc desc, int64_t rows, int64_t heads, int64_t keys = 0) {
    desc.access = access;
    const Kernels& kernels = find_kernels_or(
        [&](const Desc& wanted) { return stand_in_for(wanted, schedule); }, desc, place);
    const int64_t key_blocks = keys ? divide_up(keys, kernels.block_k) : 1;
    steps.push_back({&kernels, groups_for(desc, kernels, rows, heads * key_blocks)});
  };
  if (workers) {
    add(described(Algorithm::flash_bwd), 1, workers);
  } else {
    if (p.has_queries()) add(described(Algorithm::flash_bwd_dq), p.sq, p.batch * p.heads_q);
    if (p.batch * p.heads_k * p.sk != 0 && (to.dk.data || to.dv.data))
      add(described(Algorithm::flash_bwd_dkv), p.sk, p.batch * p.heads_k);
  }
  if (to.dbias.data && p.has_scores()) {
    const Extents extents = to.extents_of_bias();
    Desc desc = described(Algorithm::flash_bwd_bias);
    desc.bias_gradient = to.dbias.dtype;
    if (extents.rows == 1) desc.rows = 1;  // one thread goes over all rows
    add(desc, extents.rows, int64_t{extents.batches} * extents.heads, extents.keys);
  }
  if (to.dalibi.data && p.has_queries()) {
    Desc desc = described(Algorithm::flash_bwd_bias);
    desc.sums_slopes = true;
    add(desc, p.sq, p.batch * p.heads_q);
  }
  if (to.dcaptures.data && p.has_scores()) {
    Desc desc = described(Algorithm::flash_bwd_captures);
    desc.learned = to.learned;
    desc.access = access;
    const Kernels& kernels = find_kernels(desc, place);
    const int64_t captured = to.dcaptures.shape[0];
    const auto workers_of =
        static_cast<uint64_t>(workers_of_captures(p, captured, kernels, schedule));
    steps.push_back({&kernels, workers_of});
    steps.push_back({&kernels, static_cast<uint64_t>(divide_up(captured, kernels.block_q)), 1});
  }
  if (to.dalibi.data || to.dsinks.data) {
    Desc desc = describe(Algorithm::flash_bwd_heads, p);
    desc.dropout = r.dropout_p > 0;
    desc.rows = 1;
    add(desc, 1, p.heads_q);
  }
  return steps;
}

BwdParams params_of(const Problem& p, const FwdRequest& r, const Gradients& g, const Results& to,
                    const Place& place) {
  BwdParams params{};
  static_cast<FwdParams&>(params) = params_of(p, r, g.forward_outputs, place);
  params.captures = p.score_mod.captures;
  params.mask_captures = p.mask_mod.captures;
  Desc scores = describe(Algorithm::flash_bwd, p);
  describe_scores(scores, p, r);
  params.unit = scores.has_plain_scores() ? params.scale : 1.f;
  const auto arg = [&](const Array& a) { return a.data ? tensor_arg(a, r.layout) : TensorArg{}; };
  params.longer = g.longer;
  params.given_delta = reinterpret_cast<const float*>(g.delta.data);
  params.dout = arg(g.dout);
  params.dq = arg(to.dq);
  params.dk = arg(to.dk);
  params.dv = arg(to.dv);
  if (const Array& a = to.dbias; a.data)
    params.dbias = {a.data, a.strides[0], a.strides[1], a.strides[2], 1};
  params.bias = to.extents_of_bias();
  params.dalibi = reinterpret_cast<float*>(to.dalibi.data);
  params.dalibi_batch = p.alibi.ndim == 2 ? p.heads_q : 0;
  params.dsinks = reinterpret_cast<float*>(to.dsinks.data);
  if (to.dcaptures.data) {
    params.dcaptures = reinterpret_cast<float*>(to.dcaptures.data);
    params.captured = to.dcaptures.shape[0];
    std::ranges::copy(to.first_of_capture, params.first_of_capture);
  }
  if (g.dlse.data) {
    const int row = g.dlse.ndim - 1;
    params.dlse = reinterpret_cast<const float*>(g.dlse.data);
    params.dlse_batch = row == 2 ? g.dlse.strides[0] : 0;
    params.dlse_head = g.dlse.strides[row - 1];
    params.dlse_row = g.dlse.strides[row];
  }
  return params;
}

// Gives the kernels the memory that they share. Returns `more` floats of it, which no kernel uses.
float* share(Scratch& scratch, BwdParams& params, const Problem& p, const std::vector<Step>& steps,
             int64_t workers, int64_t more, const Place& place) {
  const int64_t tokens = p.packed ? p.tokens_q : p.batch * p.sq;
  const int64_t rows = whole(std::max<int64_t>(1, p.heads_q * tokens), kLineFloats);
  const int64_t query_offset = params.dalibi ? 4 * rows : 3 * rows;
  if (workers) {
    const int64_t block = steps[0].kernels->block_k, blocks = divide_up(p.sq, block);
    params.workers = static_cast<int32_t>(workers);
    params.worker_sums = p.heads_q / p.heads_k * blocks * block * whole(p.d, kLineFloats);
  }
  const auto added =
      std::ranges::find(steps, 1, &Step::entry);  // adds what the step before it leaves
  if (added != steps.end()) params.capture_workers = static_cast<int32_t>((added - 1)->groups);
  const int64_t capture_offset = query_offset + workers * params.worker_sums;
  const int64_t floats = capture_offset + params.capture_workers * params.captured;
  scratch.allocate(place, p.q, floats + more);
  params.delta = scratch.data;
  params.base = scratch.data + rows;
  params.top = scratch.data + 2 * rows;
  params.row_slopes = scratch.data + 3 * rows;
  params.query_sums = scratch.data + query_offset;
  params.capture_sums = scratch.data + capture_offset;
  return scratch.data + floats;
}

}  // namespace

py::tuple learned_names() { return names_of(kGradients); }

py::tuple backward(const py::kwargs& arguments) {
  py::dict given = py::reinterpret_steal<py::dict>(PyDict_Copy(arguments.ptr()));
  const BwdRequest own = take_own(given, kFieldsOf<BwdRequest>);
  const FwdRequest r = read_arguments(py::reinterpret_borrow<py::kwargs>(given));
  const Checker check = checker_of(r);
  const Problem p = read_problem(r);
  const Place place = place_of(p.q);
  refuse_to_wait_while_recording(place, p.q, "q", check);
  const Gradients g = read_gradients(own, r, p, check);
  refuse_caches(p, r, check);

  const Results to = new_results(p, r, g, check);
  py::tuple results = to.objects();
  const Access access = access_of(p, r, g, to, place, check);
  const int64_t workers = workers_of_one_pass(p, to, place);
  const std::vector<Step> steps = steps_of(p, r, to, g.adds_up(), workers, access, place);
  BwdParams params = params_of(p, r, g, to, place);
  Scratch scratch;
  const Prepass prepass(p, place);
  float* spans = nullptr;
  if (!steps.empty()) spans = share(scratch, params, p, steps, workers, prepass.floats(), place);
  submit(place, [&](Launcher& launch) {
    if (!p.has_scores()) {
      clear(launch, to.dbias);
      clear(launch, to.dcaptures);
    } else if (params.dcaptures) {
      launch.clear(params.capture_sums, params.capture_workers * params.captured * 4);
    }
    if (p.used_k.data && !g.adds_up()) {  // the keys that are not in use
      for (const Array* a : {&to.dk, &to.dv}) clear(launch, *a);
    }
    if (spans) prepass.launch(launch, params, spans);
    for (const Step& step : steps) {
      launch(*step.kernels->entries[step.entry], params, step.groups, step.kernels->threads);
    }
  });
  return results;
}

py::object probabilities(const py::kwargs& arguments) {
  py::dict given = py::reinterpret_steal<py::dict>(PyDict_Copy(arguments.ptr()));
  const py::object lse_object = take_own(given, std::tuple{std::get<0>(kFieldsOf<BwdRequest>)}).lse;
  const FwdRequest r = read_arguments(py::reinterpret_borrow<py::kwargs>(given));
  const Checker check = checker_of(r);
  const Problem p = read_problem(r);
  const Place place = place_of(p.q);
  refuse_to_wait_while_recording(place, p.q, "q", check);
  const Array lse = read_lse(lse_object, "lse", p, check);
  refuse_caches(p, r, check);

  const Array result = new_array(p.q, p.q.dtype, {p.batch, p.heads_q, p.sq, p.sk});
  if (p.batch * p.heads_q * p.sq * p.sk == 0) return result.object;
  Desc desc = describe(Algorithm::attention_probs, p);
  describe_scores(desc, p, r);
  desc.rows = rows_of_backward(desc, p, schedule_of(place.device));
  desc.access = access_for(p, {}, {}, r.layout, QueryRows::kOfHead, place.device.facts.arch);
  if (desc.access != Access::kNone) check_mask_strides(p, check);
  const Kernels& kernels = find_kernels(desc, place);
  const int64_t key_blocks = divide_up(p.sk, kernels.block_k);
  const uint64_t groups = groups_for(desc, kernels, p.sq, p.batch * p.heads_q * key_blocks);
  ProbsParams params{};
  static_cast<FwdParams&>(params) = params_of(p, r, {{}, {}, lse}, place);
  params.captures = p.score_mod.captures;
  params.mask_captures = p.mask_mod.captures;
  const auto& to = result.strides;
  params.probabilities = {result.data, to[0], to[2], to[1]};
  const Prepass prepass(p, place);
  Scratch scratch;
  if (const int64_t floats = prepass.floats()) scratch.allocate(place, p.q, floats);
  submit(place, [&](Launcher& launch) {
    prepass.launch(launch, params, scratch.data);
    launch(*kernels.entries[0], params, groups, kernels.threads);
  });
  return result.object;
}

}  // namespace xeflash
