#include <algorithm>
#include <cmath>
#include <optional>

#include "host/arrays/interop.hpp"
#include "host/arrays/place.hpp"
#include "host/attention/append.hpp"
#include "host/attention/desc.hpp"
#include "host/attention/functions.hpp"
#include "host/attention/params.hpp"
#include "host/attention/prepass.hpp"
#include "host/attention/problem.hpp"
#include "host/attention/schedule.hpp"

namespace xeflash {
namespace {

QueryRows query_rows_of(const Desc& desc) {
  if (desc.packed_heads) return QueryRows::kApart;
  return desc.algorithm == Algorithm::flash_decode ? QueryRows::kOfQuery : QueryRows::kOfHead;
}

Access access_of(const Problem& p, const FwdRequest& r, const Outputs& to, const Desc& desc,
                 const Place& place) {
  return access_for(p, {{&to.out, p.dv}, {&to.residual, p.dv}}, {}, r.layout, query_rows_of(desc),
                    place.device.facts.arch);
}

Desc describe(const Problem& p, const FwdRequest& r, const Outputs& to, const Place& place) {
  const Schedule& schedule = schedule_of(place.device);
  const bool adds_up = p.part.other_lse.data;
  const bool decode = p.sq == 1 && r.dropout_p == 0 && !adds_up && !p.has_blocks();
  Desc desc = describe(decode ? Algorithm::flash_decode : Algorithm::flash_fwd, p);
  describe_scores(desc, p, r);
  desc.adds_up = adds_up;
  desc.unified_max = r.unified_max.has_value();
  desc.packed_heads = !decode && packs_heads(p, r, schedule);
  desc.rows = rows_for(desc, p, schedule);
  desc.rows = rows_for_cores(desc, p, r, place.device);
  desc.page_unit = page_unit_for(p, schedule);
  desc.access = access_of(p, r, to, desc, place);
  desc.split_keys = splits_keys(p, r, desc, place.device);
  return desc;
}

// Refuses arrays whose rows a GPU cannot reach.
void check_reach(const Problem& p, const FwdRequest& r, const Outputs& to, const Desc& desc,
                 const Checker& check) {
  if (desc.access == Access::kNone) return;
  check_mask_strides(p, check);
  refuse_far_rows(p, {{&to.out, "out"}, {&to.residual, "residual"}}, r.layout, query_rows_of(desc),
                  check);
}

Array new_lse(const Problem& p, const FwdRequest& r) {
  if (!r.return_lse && !p.part.other_lse.data) return {};
  return p.packed ? new_array(p.q, DType::kF32, {p.heads_q, p.tokens_q})
                  : new_array(p.q, DType::kF32, {p.batch, p.heads_q, p.sq});
}

void launch_attention(Launcher& launch, const Desc& desc, const Kernels& kernels,
                      const ScoreModParams& params, const Sharing& shares) {
  const auto launch_entry = [&](size_t entry, uint64_t groups, int threads) {
    const Entry& kernel = *kernels.entries[entry];
    if (desc.has_snippets()) return launch(kernel, params, groups, threads);
    launch(kernel, static_cast<const FwdParams&>(params), groups, threads);
  };
  launch_entry(0, shares.groups, kernels.threads);
  if (shares.splits > 1) launch_entry(1, shares.merging_groups, 1);
}

}  // namespace

py::tuple forward(const FwdRequest& r) {
  const Checker check = checker_of(r);
  const Problem p = read_problem(r);
  const Place place = place_of(p.q);
  refuse_to_wait_while_recording(place, p.q, "q", check);
  // These come before a kernel is compiled, because they may be refused.
  Outputs to{result_array(p, r), rest_array(p, r), {}};
  std::optional<Append> append = Append::prepare(p, r, place);
  Desc desc;
  const Kernels* kernels = nullptr;
  if (p.has_queries()) {
    desc = describe(p, r, to, place);
    check_reach(p, r, to, desc, check);
    const auto stand_in = [&](const Desc& wanted) {
      Desc other = stand_in_for(wanted, schedule_of(place.device));
      other.access = access_of(p, r, to, other, place);
      check_reach(p, r, to, other, check);
      return other;
    };
    kernels = &find_kernels_or(stand_in, desc, place);
  }
  to.lse = new_lse(p, r);
  py::tuple result = py::make_tuple(to.out.object, to.lse.object ? to.lse.object : py::none());
  if (!kernels && !append) return result;

  ScoreModParams params{params_of(p, r, to, place), p.score_mod.captures, p.mask_mod.captures};
  Scratch scratch;
  const Prepass prepass(p, place);
  const Sharing shares =
      kernels ? share_out(p, r, desc, *kernels, params, place.device) : Sharing{};
  params.splits = shares.splits;
  params.looks_ahead = shares.looks_ahead;
  if (const int64_t floats = shares.floats + prepass.floats()) scratch.allocate(place, p.q, floats);
  params.partial = scratch.data;
  if (!r.out.is_none()) count_writes({&to.out});
  if (p.cache.added) count_writes({&p.k, &p.v});
  if (p.cache.added && p.cache.scales_of_rows) count_writes({&p.cache.k_scale});
  if (p.cache.added && p.writes_v_scale()) count_writes({&p.cache.v_scale});
  submit(place, [&](Launcher& launch) {
    if (append) append->launch(launch, params);
    prepass.launch(launch, params, scratch.data + shares.floats);
    if (kernels) launch_attention(launch, desc, *kernels, params, shares);
  });
  return result;
}

}  // namespace xeflash
