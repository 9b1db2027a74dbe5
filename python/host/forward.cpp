#include "forward.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <optional>

#include "append.hpp"
#include "interop.hpp"
#include "kernels.hpp"
#include "problem.hpp"
#include "tile/quantised.hpp"

namespace xeflash {
namespace {

// Whether a tile takes its rows from all heads that share its keys: where queries are few. What
// differs between heads, beyond their rows and sinks, keeps them apart.
bool packs_heads(const Problem& p, const FwdRequest& r) {
  constexpr int64_t kFewQueries = 16, kMostHeads = 256;  // see PackedRow
  const int64_t group = p.heads_q / p.heads_k;
  const bool same_bias = !p.bias.data || p.bias.ndim < 3 || p.bias.shape[p.bias.ndim - 3] == 1;
  return group > 1 && group <= kMostHeads && p.sq <= kFewQueries && same_bias && !p.alibi.data &&
         !p.score_mod.id && r.dropout == 0;
}

// Threads with 256 registers that live in a vector engine of a GPU.
constexpr int64_t kThreadsOfEngine = 4;

// Whether tiles are too few to keep a GPU's threads busy, so that those of a group take turns at
// the keys of a tile.
bool splits_keys(const Problem& p, const FwdDesc& desc, int vector_engines) {
  constexpr int64_t kManyKeys = 512, kTurns = 8;
  const int64_t rows = desc.packed_heads ? p.sq * (p.heads_q / p.heads_k) : p.sq;
  const int64_t heads = desc.packed_heads ? p.heads_k : p.heads_q, height = rows > 16 ? 16 : 8;
  const int64_t tiles = p.batch * heads * ((rows + height - 1) / height);
  return p.sk >= kManyKeys && tiles * kTurns <= kThreadsOfEngine * vector_engines;
}

// A GPU reaches the keys of a vector of scores by 32 bits.
void check_mask_strides(const Problem& p) {
  constexpr int64_t kMost = int64_t{1} << 26;
  if (!p.bias.data || p.bias.ndim == 0 || p.bias.shape[p.bias.ndim - 1] < 2) return;
  const int64_t stride = std::abs(p.bias.strides[p.bias.ndim - 1]);
  if (stride > kMost)
    throw py::value_error(
        "attention: attn_mask must have a last stride of at most 2^26 on a GPU, got " +
        std::to_string(stride));
}

// Keys that the window of one query leaves.
int64_t seen_at_most(const FwdParams& p) {
  if (p.left == kUnbounded || p.right == kUnbounded) return p.max_k;
  return std::min<int64_t>(p.max_k, int64_t{p.left} + p.right + 1);
}
// Of a split on a CPU. Where the heads of a key lie beside each other, work-items that follow each
// other read these (SplitWork): 256 KiB of rows keep their pages and what is fetched ahead at hand,
// which is up to twice as fast as a head after the other.
int64_t most_keys_of_split(const Array& k, Layout layout) {
  constexpr int64_t kBytes = 256 << 10, kLeastKeys = 32;
  const Axes axes = axes_of(layout);
  const int64_t row = std::abs(k.strides[axes.row]), head = std::abs(k.strides[axes.head]);
  if (k.shape[axes.head] < 2 || head >= row) return std::numeric_limits<int64_t>::max();
  return std::max(kLeastKeys, kBytes / (row * size_of(k.dtype)));
}
// Enough work-items to fill the device a few times over, so that it ends evenly; at least 256 keys
// each, so that merging stays cheap.
int splits_on_cpu(int64_t items, int64_t keys, int64_t most_keys, int compute_units) {
  const int64_t wanted = (4 * compute_units + items - 1) / items;
  const int64_t to_fill = std::min(wanted, (keys + 255) / 256);
  return static_cast<int>(std::max({int64_t{1}, to_fill, (keys - 1) / most_keys + 1}));
}
// On a GPU one wave of threads: a second one that is not full would take as long as the first. At
// least 128 keys each: what a thread reads in about the time that the launch of the merging kernel
// takes. And 32 for each of a tile's rows: a split reads 2 bytes of Q a column and row, writes 4 of
// O, and they are read again to be merged, which is then at most 8 % of its keys' and values'.
int splits_on_gpu(int64_t threads, int64_t keys, int rows, int vector_engines) {
  const int64_t least = std::max(128, 32 * rows);
  const int64_t wanted = kThreadsOfEngine * vector_engines / threads;
  return static_cast<int>(std::max<int64_t>(1, std::min(wanted, (keys + least - 1) / least)));
}

// Work of one split: a tile of the heads of a key, or a part of it.
int64_t decode_items(const Problem& p, const FwdKernels& kernels) {
  const int64_t group = p.heads_q / p.heads_k;
  return p.batch * p.heads_k * ((group + kernels.block_q - 1) / kernels.block_q) * kernels.parts;
}

int32_t splits_for(const Problem& p, const FwdRequest& r, const FwdDesc& desc,
                   const FwdKernels& kernels, const FwdParams& params) {
  if (r.splits > 0) return static_cast<int32_t>(r.splits);
  const int64_t items = decode_items(p, kernels);
  const int units = kernels.device.compute_units;
  if (desc.access == Access::kNone) {
    return splits_on_cpu(items, seen_at_most(params), most_keys_of_split(p.k, p.k_layout(r.layout)),
                         units);
  }
  const auto rows = static_cast<int>(std::min<int64_t>(p.heads_q / p.heads_k, kernels.block_q));
  return splits_on_gpu(items * kernels.threads, params.max_k, rows, units);
}

// Where splits leave their results, if the maker of the arrays has no memory that is freed in the
// order of its stream. One buffer per thread, for the queue it used last: a thread's launches on an
// in-order queue follow each other, and on another queue each is waited for.
class PartialBuffer {
 public:
  float* get(const sycl::queue& queue, size_t floats) {
    if (!queue_ || *queue_ != queue || size_ < floats) {
      release();
      data_ = sycl::aligned_alloc_device<float>(64, floats, queue);
      if (!data_) throw std::bad_alloc();
      queue_ = queue;
      size_ = floats;
    }
    return data_;
  }
  ~PartialBuffer() { release(); }

 private:
  void release() {
    if (!data_) return;
    queue_->wait();
    sycl::free(data_, *queue_);
    data_ = nullptr;
    queue_.reset();
  }

  std::optional<sycl::queue> queue_;
  float* data_ = nullptr;
  size_t size_ = 0;
};
thread_local PartialBuffer partial_buffer;

// As a normal float: 0 times a hidden score, or the largest one times a scale of infinity, is no
// number.
float scale_of(double scale) {
  using Float = std::numeric_limits<float>;
  const double size = std::clamp<double>(std::fabs(scale), Float::min(), Float::max());
  return static_cast<float>(std::copysign(size, scale));
}

// s and s / cap have to be normal floats, too: below the least one nothing is left of a score, and
// a cap above 2^100 changes none that is not itself near 2^100.
float softcap_of(double cap) {
  if (cap == 0) return 0;
  return static_cast<float>(std::clamp<double>(cap, std::numeric_limits<float>::min(), 0x1p100));
}

void set_features(FwdParams& params, const Problem& p, const FwdRequest& r) {
  if (p.bias.data) {
    int64_t strides[4] = {0, 0, 0, 0};
    for (int i = 0; i < p.bias.ndim; ++i) {
      const int from = p.bias.ndim - 1 - i;
      if (p.bias.shape[from] > 1) strides[3 - i] = p.bias.strides[from];
    }
    params.bias = {p.bias.data, strides[0], strides[1], strides[2], strides[3]};
  }
  if (p.alibi.data) {
    params.alibi = reinterpret_cast<const float*>(p.alibi.data);
    params.alibi_batch = p.alibi.ndim == 2 ? p.alibi.strides[0] : 0;
  }
  if (p.sinks.data) params.sinks = reinterpret_cast<const float*>(p.sinks.data);
  // flash-attn takes a side that reaches over all keys, of packed sequences as many as they are
  // said to have at most, as unlimited, wherever the diagonal is.
  const int64_t all_keys = p.packed ? r.max_k : p.sk;
  auto side = [&](int64_t n) {
    const bool unlimited = n < 0 || (r.layout != Layout::kBHSD && n >= all_keys);
    return unlimited ? kUnbounded : static_cast<int32_t>(std::min<int64_t>(n, kMaxLength));
  };
  params.left = side(r.left);
  params.right = side(r.right);
  if (r.causal) params.right = 0;
  params.top_left = !r.bottom_right;
  const double scale = r.scale ? *r.scale : 1.0 / std::sqrt(static_cast<double>(p.d));
  params.scale = scale_of(scale * p.cache.k_factor);
  params.softcap = softcap_of(r.softcap);
  params.unified_max = static_cast<float>(r.unified_max.value_or(0));
  params.empty_lse = r.layout == Layout::kBHSD ? -std::numeric_limits<float>::infinity()
                                               : std::numeric_limits<float>::infinity();
  params.seed = r.seed;
  params.offset = r.offset;
  params.drop_below = static_cast<uint32_t>(std::lround(r.dropout * 65536));
  params.keep_scale =
      params.drop_below < 65536 ? 65536.f / static_cast<float>(65536 - params.drop_below) : 0.f;
}

// What GPUs divide O by, if V's rows have factors.
float factor_unit(DType dtype) {
  switch (dtype) {
    case DType::kE4M3:
      return kFactorUnit<e4m3>;
    case DType::kE5M2:
      return kFactorUnit<e5m2>;
    default:
      return kFactorUnit<int8_t>;
  }
}

void set_cache(FwdParams& params, const Cache& c) {
  const auto ints = [](const Array& a) { return reinterpret_cast<const int32_t*>(a.data); };
  const auto scales = [](const Array& a) {
    if (!a.data) return TensorArg{};
    return TensorArg{a.data, a.shape[0] > 1 ? a.strides[0] : 0, a.strides[1], a.strides[2]};
  };
  params.cache.lengths = ints(c.lengths);
  params.cache.sequences = ints(c.sequences);
  params.cache.left_pad = ints(c.left_pad);
  params.cache.table = ints(c.table);
  params.cache.table_row = c.table.strides[0];
  params.cache.page = static_cast<int32_t>(c.page);
  params.cache.added = static_cast<int32_t>(c.added);
  params.cache.k_scale = scales(c.k_scale);
  params.cache.v_scale = scales(c.v_scale);
  params.v_scale = c.v_factor;
}

// Tells torch what a call writes into: autograd refuses what it saved and was changed.
void count_writes(const Problem& p, const FwdRequest& r, const Array& out) {
  const Cache& c = p.cache;
  py::list written;
  const auto add = [&](const Array& a) {
    if (a.data && a.maker == Maker::kExchange) written.append(a.object);
  };
  if (!r.out.is_none()) add(out);
  if (c.added) {
    for (const Array* a : {&p.k, &p.v, &c.k_scale, &c.v_scale}) add(*a);
  }
  if (!written.empty()) interop().attr("count_writes")(written);
}

}  // namespace

uint8_t rows_for(Algorithm algorithm, const Problem& p, bool packed_heads) {
  if (algorithm == Algorithm::kDecode) {
    const int64_t group = p.heads_q / p.heads_k, tiles = (group + 15) / 16;
    return static_cast<uint8_t>((group + tiles - 1) / tiles);
  }
  const int64_t filled = packed_heads ? p.sq * (p.heads_q / p.heads_k) : p.sq;
  uint8_t rows = 16;
  while (rows < 128 && rows < filled) rows *= 2;
  return rows;
}

FwdParams params_of(const Problem& p, const Array& out, const FwdRequest& r) {
  FwdParams params{};
  params.q = tensor_arg(p.q, r.layout);
  params.k = tensor_arg(p.k, p.k_layout(r.layout));
  params.v = tensor_arg(p.v, p.k_layout(r.layout));
  params.o = tensor_arg(out, r.layout);
  if (p.packed) {
    params.cu_q = reinterpret_cast<const int32_t*>(p.cu_q.data);
    params.cu_k = reinterpret_cast<const int32_t*>(p.cu_k.data);
    params.used_k = reinterpret_cast<const int32_t*>(p.used_k.data);
  }
  params.batch = static_cast<int32_t>(p.batch);
  params.heads_q = static_cast<int32_t>(p.heads_q);
  params.heads_k = static_cast<int32_t>(p.heads_k);
  params.max_q = static_cast<int32_t>(p.sq);
  params.max_k = static_cast<int32_t>(p.cache.given ? p.cache.max_keys : p.sk);
  params.splits = 1;
  set_features(params, p, r);
  set_cache(params, p.cache);
  return params;
}

py::tuple forward(const FwdRequest& r) {
  const Problem p = read_problem(r);
  sycl::queue& queue = p.q.queue ? *static_cast<sycl::queue*>(p.q.queue) : host_queue();
  refuse_to_wait_while_recording(p.q, p.q_name, Checker(r.function));
  const Array out = result_array(p, r);  // before a kernel is compiled: `out` may be refused
  const bool empty = p.batch * p.heads_q * p.sq * (p.packed ? p.tokens_q : 1) == 0;

  FwdDesc desc;
  const FwdKernels* kernels = nullptr;
  const int device = p.q.queue ? device_index(queue) : kMaxDevices;
  desc.dtype = p.q.dtype;
  desc.cache = p.cache.kind;
  desc.cache_dtype = p.k.dtype == p.q.dtype ? DType::kOther : p.k.dtype;
  desc.cache_scales = p.cache.k_scale.data != nullptr;
  desc.head_dim = static_cast<uint16_t>(p.d);
  desc.head_dim_v = static_cast<uint16_t>(p.dv);
  desc.device = static_cast<uint8_t>(device);
  std::optional<Append> append = Append::prepare(p, r, desc, queue);
  if (!empty) {
    const bool on_cpu = !p.q.queue || facts_of_index(device).type == "cpu";
    const bool decode = p.sq == 1 && r.dropout == 0;
    desc.algorithm = decode ? Algorithm::kDecode : Algorithm::kForward;
    desc.packed_heads = !decode && packs_heads(p, r);
    if (!on_cpu) {
      check_mask_strides(p);
      const QueryRows query_rows = desc.packed_heads ? QueryRows::kApart
                                   : decode          ? QueryRows::kOfQuery
                                                     : QueryRows::kOfHead;
      refuse_far_rows(p, out, r.layout, query_rows, Checker(r.function));
      const DeviceFacts& facts = facts_of_index(device);
      desc.access = access_for(p, out, r.layout, query_rows, facts.arch);
      for (uint8_t unit : {32, 64}) {  // blocks of keys of the tuning tables are no larger
        if (p.cache.page % unit == 0 && p.cache.page > 0) desc.page_unit = unit;
      }
      desc.split_keys = !decode && splits_keys(p, desc, facts.compute_units);
    }
    desc.bias = p.bias.data ? p.bias.dtype : DType::kOther;
    desc.softcap = r.softcap > 0;
    desc.alibi = p.alibi.data != nullptr;
    desc.dropout = r.dropout > 0;
    desc.score_mod = p.score_mod.id;
    const bool plain = !p.bias.data && !desc.softcap && !desc.alibi && !desc.score_mod;
    desc.negative_scale = plain && r.scale && std::signbit(*r.scale);
    desc.unified_max = r.unified_max.has_value();
    desc.rows = rows_for(desc.algorithm, p, desc.packed_heads);
    kernels = &find_kernels(desc, queue);
  }

  Array lse;
  if (r.want_lse) {
    lse = p.packed ? new_array(p.q, DType::kF32, {p.heads_q, p.tokens_q})
                   : new_array(p.q, DType::kF32, {p.batch, p.heads_q, p.sq});
  }
  const py::object lse_object = r.want_lse ? lse.object : py::none();
  if (empty && !append) return py::make_tuple(out.object, lse_object);

  ScoreModParams params{params_of(p, out, r), p.score_mod.captures};
  if (desc.access != Access::kNone && desc.cache_scales) params.v_scale /= factor_unit(p.v.dtype);
  if (r.want_lse) {
    params.lse = reinterpret_cast<float*>(lse.data);
    params.lse_batch = p.packed ? 0 : p.heads_q * p.sq;
    params.lse_head = p.packed ? p.tokens_q : p.sq;
  }

  // Host arrays are ready when we return. On an in-order queue later work of the caller follows by
  // itself, so there is nothing to wait for if the caller may drop the arrays before we are done.
  // On another queue everything before us has to be finished first, and we have to be finished
  // before anything else.
  const bool in_order = queue.is_in_order();
  const bool wait = !p.q.queue || !in_order || !p.q.stream_ordered;
  uint64_t groups = 0;
  Array partial;
  if (desc.algorithm == Algorithm::kDecode && !empty) {
    params.splits = splits_for(p, r, desc, *kernels, params);
    groups = static_cast<uint64_t>(decode_items(p, *kernels)) * params.splits;
    check_groups(groups, desc.access);
    if (params.splits > 1) {
      const int64_t floats = p.batch * p.heads_q * params.splits * ((p.dv + 15) / 16 * 16 + 2);
      if (p.q.queue && p.q.stream_ordered) {
        partial = new_array(p.q, DType::kF32, {floats});
        params.partial = reinterpret_cast<float*>(partial.data);
      } else {
        params.partial = partial_buffer.get(queue, static_cast<size_t>(floats));
      }
    }
  }
  count_writes(p, r, out);
  py::gil_scoped_release nogil;
  if (!in_order) queue.wait_and_throw();
  std::optional<WorkersRoam> roam;
  if (!p.q.queue) roam.emplace();
  const auto submit = [&](const sycl::kernel& kernel, uint64_t groups, int threads = 1) {
    if (desc.score_mod) return launch(queue, kernel, params, groups, threads);
    return launch<FwdParams>(queue, kernel, params, groups, threads);
  };
  sycl::event done;
  if (append) {
    done = append->launch(queue, params);
    if (!in_order) done.wait_and_throw();
  }
  if (empty) {
    // nothing but new keys
  } else if (desc.algorithm == Algorithm::kForward) {
    const int64_t heads = desc.packed_heads ? p.heads_k : p.heads_q;
    const int64_t rows = p.heads_q / heads * p.sq;
    groups = groups_for(desc, *kernels, rows, p.batch * heads);
    done = submit(*kernels->entries[0], groups, kernels->threads);
  } else {
    done = submit(*kernels->entries[0], groups, kernels->threads);
    if (params.splits > 1) {
      if (!in_order) done.wait_and_throw();
      done = submit(*kernels->entries[1], static_cast<uint64_t>(p.batch) * p.heads_q);
    }
  }
  if (wait) done.wait_and_throw();
  if (!p.q.queue) roam->finish(groups);
  py::gil_scoped_acquire gil;
  return py::make_tuple(out.object, lse_object);
}

}  // namespace xeflash
