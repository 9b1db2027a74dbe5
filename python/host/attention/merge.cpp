#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "host/arrays/checks.hpp"
#include "host/arrays/place.hpp"
#include "host/attention/desc.hpp"
#include "host/attention/functions.hpp"
#include "host/attention/problem.hpp"

namespace xeflash {
namespace {

struct State {
  Array o, lse;
};

// The states after they were checked. All have the sizes, the type and the place of the first one.
std::vector<State> read_states(const py::list& outs, const py::list& lses, const Checker& check) {
  std::vector<State> states;
  for (size_t i = 0; i < outs.size(); ++i) {
    const std::string out_name = "out " + std::to_string(i), lse_name = "lse " + std::to_string(i);
    const char *o_name = out_name.c_str(), *l_name = lse_name.c_str();
    State s{read_rows(outs[i], check, o_name),
            with_whole_strides(read_array(lses[i], check, l_name), check, l_name)};
    const State& first = states.empty() ? s : states[0];
    const Array& o = s.o;
    check.require_float(o, o_name);
    check.require_dtype_of(o, o_name, first.o, "out 0");
    XF_REQUIRE(check, o.ndim == 3 || o.ndim == 4, o_name, "must have 3 or 4 dimensions",
               std::to_string(o.ndim), o);
    const int64_t dim = o.shape[o.ndim - 1];
    XF_REQUIRE(check, dim >= 1 && dim <= kMaxHeadDim, o_name,
               ".head_dim must be 1 to " + std::to_string(kMaxHeadDim), std::to_string(dim), o);
    XF_REQUIRE(check, o.describe_shape() == first.o.describe_shape(), o_name,
               "must have the shape of out 0 " + first.o.describe_shape(), o.describe_shape(), o);
    const int rows = o.ndim - 3, heads = o.ndim - 2;
    const bool fits = s.lse.ndim == o.ndim - 1 && s.lse.shape[s.lse.ndim - 1] == o.shape[rows] &&
                      s.lse.shape[s.lse.ndim - 2] == o.shape[heads] &&
                      (o.ndim == 3 || s.lse.shape[0] == o.shape[0]);
    XF_REQUIRE(check, fits, l_name,
               std::string("must have the shape (") + (o.ndim == 4 ? "batch, " : "") +
                   "heads, rows) of out 0 " + o.describe_shape(),
               s.lse.describe_shape(), s.lse);
    check.require_dtype(s.lse, l_name, DType::kF32);
    check.require_same_place(o, o_name, first.o, "out 0");
    check.require_same_place(s.lse, l_name, first.o, "out 0");
    states.push_back(std::move(s));
  }
  return states;
}

StateArg state_arg(const State& s) {
  const auto batch_of = [](const Array& a, int ndim) {
    return a.ndim == ndim && a.shape[0] > 1 ? a.strides[0] : 0;
  };
  const Array &o = s.o, &l = s.lse;
  return {{o.data, batch_of(o, 4), o.strides[o.ndim - 3], o.strides[o.ndim - 2]},
          reinterpret_cast<float*>(l.data),
          batch_of(l, 3),
          l.strides[l.ndim - 1],
          l.strides[l.ndim - 2]};
}

// Returns the widest access that the outputs of all states allow.
Access access_of_states(const std::vector<State>& states, const std::string& arch) {
  Access access = Access::kNone;
  for (const State& s : states) {
    const Layout layout = s.o.ndim == 4 ? Layout::kBSHD : Layout::kTHD;
    access = std::max(access, access_of_rows(s.o, axes_of(layout), arch));
  }
  return access;
}

State new_state(const Array& like, DType dtype) {
  const auto& s = like.shape;
  if (like.ndim == 3) {
    return {new_array(like, dtype, {s[0], s[1], s[2]}), new_array(like, DType::kF32, {s[1], s[0]})};
  }
  return {new_array(like, dtype, {s[0], s[1], s[2], s[3]}),
          new_array(like, DType::kF32, {s[0], s[2], s[1]})};
}

}  // namespace

py::tuple merge_states(const py::list& outs, const py::list& lses) {
  const std::string function = "merge_states";
  const Checker check(function);
  if (outs.empty() || outs.size() != lses.size())
    check.refuse("outs and lses must be as many, and not none, got " + std::to_string(outs.size()) +
                 " and " + std::to_string(lses.size()));
  const std::vector<State> states = read_states(outs, lses, check);
  const Array& o = states[0].o;
  const Place place = place_of(o);
  refuse_to_wait_while_recording(place, o, "out 0", check);
  const int64_t batch = o.ndim == 4 ? o.shape[0] : 1, rows = o.shape[o.ndim - 3];
  const int64_t heads = o.shape[o.ndim - 2];
  const bool empty = batch * rows * heads == 0;

  Desc desc;
  desc.algorithm = Algorithm::merge_states;
  desc.dtype = o.dtype;
  desc.head_dim = desc.head_dim_v = static_cast<uint16_t>(o.shape[o.ndim - 1]);
  desc.access = access_of_states(states, place.device.facts.arch);
  const auto groups = static_cast<uint64_t>(batch * rows);
  check_groups(groups, desc.access);
  const Kernels* kernels = empty ? nullptr : &find_kernels(desc, place);
  const State merged = new_state(o, o.dtype);
  py::tuple result = py::make_tuple(merged.o.object, merged.lse.object);
  if (empty) return result;

  const size_t count = states.size();
  std::optional<State> carried;
  if (count > kMaxStates) carried = new_state(o, DType::kF32);
  MergeParams params{};
  params.merged = state_arg(merged);
  params.carried = carried ? state_arg(*carried) : params.merged;
  params.rows = static_cast<int32_t>(rows);
  params.heads = static_cast<int32_t>(heads);
  submit(place, [&](Launcher& launch) {
    for (size_t first = 0; first < count; first += kMaxStates) {
      params.count = static_cast<int32_t>(std::min<size_t>(kMaxStates, count - first));
      for (int s = 0; s < params.count; ++s) params.states[s] = state_arg(states[first + s]);
      params.reads_carried = first > 0;
      params.leaves_carried = first + kMaxStates < count;
      launch(*kernels->entries[0], params, groups);
    }
  });
  return result;
}

}  // namespace xeflash
