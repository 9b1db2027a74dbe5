// The numbers of xeflash.tune by which calls are shared out over a device, and the few that layouts
// and messages dictate. No other size in these files is a choice.
#pragma once

#include "fields.hpp"
#include "runtime.hpp"

namespace xeflash {

// As tune/schedule.py explains them.
struct Schedule {
  int page_unit, units_of_tile, turns, turn_keys, turn_head_dim;
  int threads_of_unit, tile_rows, packed_queries;
  int merge_keys, merge_splits, merge_share, flops_of_byte, quarter_keys, most_waves, cache_of_unit;
  int split_keys, split_few, split_bytes, split_least;
  int least_rows, most_rows, low_rows, low_head_dim, key_rows, backward_rows, stand_in_heads;
  bool one_pass, one_pass_bf16;
  int one_pass_floats, capture_workers, capture_floats;
};
constexpr std::tuple kScheduleFields{
    Field{"page_unit", &Schedule::page_unit},
    Field{"units_of_tile", &Schedule::units_of_tile},
    Field{"turns", &Schedule::turns},
    Field{"turn_keys", &Schedule::turn_keys},
    Field{"turn_head_dim", &Schedule::turn_head_dim},
    Field{"threads_of_unit", &Schedule::threads_of_unit},
    Field{"tile_rows", &Schedule::tile_rows},
    Field{"packed_queries", &Schedule::packed_queries},
    Field{"merge_keys", &Schedule::merge_keys},
    Field{"merge_splits", &Schedule::merge_splits},
    Field{"merge_share", &Schedule::merge_share},
    Field{"flops_of_byte", &Schedule::flops_of_byte},
    Field{"quarter_keys", &Schedule::quarter_keys},
    Field{"most_waves", &Schedule::most_waves},
    Field{"cache_of_unit", &Schedule::cache_of_unit},
    Field{"split_keys", &Schedule::split_keys},
    Field{"split_few", &Schedule::split_few},
    Field{"split_bytes", &Schedule::split_bytes},
    Field{"split_least", &Schedule::split_least},
    Field{"least_rows", &Schedule::least_rows},
    Field{"most_rows", &Schedule::most_rows},
    Field{"low_rows", &Schedule::low_rows},
    Field{"low_head_dim", &Schedule::low_head_dim},
    Field{"key_rows", &Schedule::key_rows},
    Field{"backward_rows", &Schedule::backward_rows},
    Field{"stand_in_heads", &Schedule::stand_in_heads},
    Field{"one_pass", &Schedule::one_pass},
    Field{"one_pass_bf16", &Schedule::one_pass_bf16},
    Field{"one_pass_floats", &Schedule::one_pass_floats},
    Field{"capture_workers", &Schedule::capture_workers},
    Field{"capture_floats", &Schedule::capture_floats},
};
static_assert(is_complete(kScheduleFields));

struct ProductSchedule {
  int logits_unit, sums_unit, slope_unit;
  int part_columns, parts, core_columns;
  int slope_rows, slope_elements, slope_columns, slope_gap;
  int few_rows, cores_of_tables, most_rows, step_inputs, few_inputs;
};
constexpr std::tuple kProductScheduleFields{
    Field{"logits_unit", &ProductSchedule::logits_unit},
    Field{"sums_unit", &ProductSchedule::sums_unit},
    Field{"slope_unit", &ProductSchedule::slope_unit},
    Field{"part_columns", &ProductSchedule::part_columns},
    Field{"parts", &ProductSchedule::parts},
    Field{"core_columns", &ProductSchedule::core_columns},
    Field{"slope_rows", &ProductSchedule::slope_rows},
    Field{"slope_elements", &ProductSchedule::slope_elements},
    Field{"slope_columns", &ProductSchedule::slope_columns},
    Field{"slope_gap", &ProductSchedule::slope_gap},
    Field{"few_rows", &ProductSchedule::few_rows},
    Field{"cores_of_tables", &ProductSchedule::cores_of_tables},
    Field{"most_rows", &ProductSchedule::most_rows},
    Field{"step_inputs", &ProductSchedule::step_inputs},
    Field{"few_inputs", &ProductSchedule::few_inputs},
};
static_assert(is_complete(kProductScheduleFields));

const Schedule& schedule_of(const Device& device);
const ProductSchedule& product_schedule_of(const Device& device);

constexpr int64_t divide_up(int64_t n, int64_t of) { return (n + of - 1) / of; }
constexpr int64_t whole(int64_t n, int64_t of) { return divide_up(n, of) * of; }

constexpr int64_t kLineBytes = 64;  // of a cache, which memory of a call begins at
constexpr int64_t kLineFloats = kLineBytes / 4;
constexpr int64_t kMaxSplits = 128;     // that a call may ask for, and of which the best are sought
constexpr int64_t kPageKeys = 16;       // pages of a cache have a multiple of them
constexpr int64_t kLeastLanes = 8;      // rows that a thread has at least in kernels of single rows
constexpr int64_t kMessageInputs = 32;  // GPUs read multiples of them: 64 bytes of 16-bit inputs
constexpr int64_t kDepthInputs = 16;    // but up to so many, a step of their matrix unit, as those

}  // namespace xeflash
