#include "host/attention/cache.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "host/arrays/checks.hpp"
#include "host/arrays/place.hpp"
#include "host/attention/problem.hpp"
#include "host/device/runtime.hpp"
#include "host/device/sizes.hpp"
#include "tile/quantised.hpp"

namespace xeflash {
namespace {

constexpr int64_t kRotaryUnit = 16;  // rotated columns are a multiple of it
constexpr int kKeyColumns = 32;      // beside a V in 4 bits, those of K are a multiple of it

// Returns whether an array has a scale per row and head of a cache.
bool is_of_rows(const Array& scale, const Array& cache) {
  return has_shape(scale, {cache.shape[0], cache.shape[1], cache.shape[2]});
}

// Returns whether an array has one scale, or one per head, or per sequence and head.
bool is_of_heads(const Array& a, const Problem& p) {
  const auto fits = [](int64_t n, int64_t whole) { return n == 1 || n == whole; };
  if (std::all_of(a.shape.begin(), a.shape.begin() + a.ndim, [](int64_t n) { return n == 1; }))
    return true;
  return (a.ndim == 1 || (a.ndim == 2 && fits(a.shape[0], p.batch))) &&
         fits(a.shape[a.ndim - 1], p.heads_k);
}

// Reads the scales of V in 4 bits: one per unit of each row and head.
Array read_unit_scales(const py::object& object, const Problem& p, const Checker& check) {
  const char* name = "v_scale";
  const Array& v = p.v;
  const std::array<int64_t, 4> shape = {v.shape[0], v.shape[1], v.shape[2], p.dv / kUnitColumns};
  const std::string rule = "must be fp16 of shape " + text_of_shape({shape.begin(), shape.end()}) +
                           ", a scale per " + std::to_string(kUnitColumns) + " columns, with " +
                           check.word(p.v_name()) + " of uint8";
  if (object.is_none() || PyFloat_Check(object.ptr()) || PyLong_Check(object.ptr()))
    check.refuse(name, rule + ", got " + py::str(object).cast<std::string>());
  Array a = read_array(object, check, name);
  check.require_dtype(a, name, DType::kF16);
  XF_REQUIRE(check, has_shape(a, {shape[0], shape[1], shape[2], shape[3]}), name, rule,
             a.describe_shape(), a);
  XF_REQUIRE(check, a.whole_strides, name, "must have strides of whole elements", "others", a);
  XF_REQUIRE(check, a.has_contiguous_rows(), name, "must have a contiguous last dimension",
             "stride " + number(a.strides[3]), a);
  check.require_same_place(a, name, p.q, "q");
  return a;
}

Array read_scale(const py::object& object, float& factor, const char* name, const Array& of,
                 const char* cache_name, const char* part, const Problem& p, const Checker& check) {
  if (object.is_none()) {
    if (of.dtype == DType::kI8) check.refuse(name, "must be given with int8");
    return {};
  }
  if (!is_quantised(of.dtype)) {
    check.refuse(name, "must be None unless " + check.word(cache_name) +
                           " is int8 or an 8-bit float, got " + check.word(cache_name) +
                           ".dtype = " + of.describe_dtype());
  }
  if (PyFloat_Check(object.ptr()) || PyLong_Check(object.ptr())) {
    factor = static_cast<float>(PyFloat_AsDouble(object.ptr()));
    if (PyErr_Occurred()) {  // an int that no double holds
      PyErr_Clear();
      factor = INFINITY;
    }
    if (!std::isfinite(factor) || factor <= 0) {
      check.refuse(name, "must be positive and finite in float32, got " +
                             py::str(object).cast<std::string>());
    }
    return {};
  }
  Array a = read_array(object, check, name);
  check.require_dtype(a, name, DType::kF32);
  XF_REQUIRE(check, is_of_rows(a, of) || is_of_heads(a, p), name,
             "must be a number, or fp32 of one element, per head " + text_of_shape({p.heads_k}) +
                 ", per " + part + " and head " + text_of_shape({p.batch, p.heads_k}) +
                 ", or per row and head of " + check.word(cache_name) + " " +
                 text_of_shape({of.shape[0], of.shape[1], of.shape[2]}),
             a.describe_shape(), a);
  XF_REQUIRE(check, a.whole_strides, name, "must have strides of whole elements", "others", a);
  check.require_same_place(a, name, p.q, "q");
  return a;
}

}  // namespace

void read_scales(Problem& p, const py::object& k_scale, const py::object& v_scale, const char* part,
                 const Checker& check) {
  Cache& c = p.cache;
  c.k_scale = read_scale(k_scale, c.k_factor, "k_scale", p.k, p.k_name(), part, p, check);
  if (p.has_nibbles()) {
    c.v_scale = read_unit_scales(v_scale, p, check);
    c.scales_of_rows = c.k_scale.object && is_of_rows(c.k_scale, p.k);
    return;
  }
  c.v_scale = read_scale(v_scale, c.v_factor, "v_scale", p.v, p.v_name(), part, p, check);
  if (!c.k_scale.object != !c.v_scale.object) {
    check.refuse(check.word("k_scale") + " and " + check.word("v_scale") +
                 " must both be one number, or both have more, got more of " +
                 check.word(c.k_scale.object ? "k_scale" : "v_scale") + " alone");
  }
  if (!c.k_scale.object) return;
  c.scales_of_rows = is_of_rows(c.k_scale, p.k);
  XF_REQUIRE(
      check, c.scales_of_rows == is_of_rows(c.v_scale, p.v), "v_scale",
      "must have a scale per row of the cache if " + check.word("k_scale") + " has, else none",
      c.v_scale.describe_shape(), c.v_scale);
}

namespace {

// Reads a table, which has a row per sequence of the batch.
Array read_table(const py::object& object, const char* name, const Problem& p,
                 const Checker& check) {
  Array a = read_array(object, check, name);
  check.require_dtype(a, name, DType::kI32);
  XF_REQUIRE(check, a.ndim == 2 && a.shape[0] == p.batch, name,
             "must have shape [" + number(p.batch) + ", columns]", a.describe_shape(), a);
  XF_REQUIRE(check, a.has_contiguous_rows(), name, "must have a contiguous last dimension",
             "stride " + number(a.strides[1]), a);
  check.require_same_place(a, name, p.q, "q");
  let_host_see(a);
  return a;
}

void read_places(Problem& p, const FwdRequest& r, const Checker& check) {
  Cache& c = p.cache;
  const CacheRequest& given = r.cache;
  const std::pair<const py::object*, const char*> others[] = {
      {&given.beam_index, "beam_index"},
      {&given.cache_batch_idx, "cache_batch_idx"},
      {&given.cache_leftpad, "cache_leftpad"}};
  if (!given.block_table.is_none()) {
    for (const auto& [object, name] : others) {
      if (!object->is_none()) {
        check.refuse(name, "must be None with " + check.word("block_table"));
      }
    }
  }
  if (!given.beam_index.is_none() && !given.cache_batch_idx.is_none()) {
    check.refuse("cache_batch_idx", "must be None with " + check.word("beam_index"));
  }
  c.capacity = p.k.shape[1];
  if (!given.block_table.is_none()) {
    c.kind = CacheKind::kPaged;
    c.page = p.k.shape[1];
    XF_REQUIRE(check, c.page > 0 && c.page % kPageKeys == 0, p.k_name(),
               ".page must be a positive multiple of " + std::to_string(kPageKeys), number(c.page),
               p.k);
    c.table = read_table(given.block_table, "block_table", p, check);
    c.capacity = std::min<int64_t>(c.table.shape[1] * c.page, kMaxLength);
  } else if (!given.beam_index.is_none()) {
    if (p.has_nibbles())
      check.refuse<NotImplemented>(
          "beam_index", "must be None with " + check.word(p.v_name()) + " of uint8, got an array");
    c.kind = CacheKind::kBeam;
    c.table = read_table(given.beam_index, "beam_index", p, check);
    c.capacity = std::min(c.capacity, c.table.shape[1]);
  } else if (!given.cache_batch_idx.is_none()) {
    c.sequences = read_int32(given.cache_batch_idx, "cache_batch_idx", p.batch, p, check);
  } else {
    XF_REQUIRE(check, p.k.shape[0] == p.batch, p.k_name(),
               ".batch must equal " + check.word("q") + ".batch (" + number(p.batch) + ")",
               number(p.k.shape[0]), p.k);
  }
  if (!given.cache_leftpad.is_none()) {
    c.left_pad = read_int32(given.cache_leftpad, "cache_leftpad", p.batch, p, check);
  }
}

Array read_new(const py::object& object, const char* name, int64_t dim, int64_t tokens,
               const Problem& p, const Checker& check) {
  Array a = read_rows(object, check, name);
  check.require_dtype_of(a, name, p.q, "q");
  const int64_t rows = tokens < 0 ? a.shape[1] : tokens;
  XF_REQUIRE(check, has_shape(a, {p.batch, rows, p.heads_k, dim}), name,
             "must have shape [" + number(p.batch) + ", " +
                 (tokens < 0 ? "tokens" : number(tokens)) + ", " + number(p.heads_k) + ", " +
                 number(dim) + "]",
             a.describe_shape(), a);
  check.require_same_place(a, name, p.q, "q");
  return a;
}

void read_rotary(Problem& p, const FwdRequest& r, const Checker& check) {
  Cache& c = p.cache;
  const CacheRequest& given = r.cache;
  if (given.rotary_cos.is_none() && given.rotary_sin.is_none()) {
    if (!given.rotary_positions.is_none())
      check.refuse("rotary_positions", "must come with " + check.word("rotary_cos") + " and " +
                                           check.word("rotary_sin") + ", got an array without");
    return;
  }
  if (given.rotary_cos.is_none() || given.rotary_sin.is_none()) {
    check.refuse(check.word("rotary_cos") + " and " + check.word("rotary_sin") +
                 " must be given together");
  }
  if (r.k.is_none())
    check.refuse(
        "k", "must be given with " + check.word("rotary_cos") + " and " + check.word("rotary_sin"));
  c.cos = read_rows(given.rotary_cos, check, "rotary_cos");
  c.sin = read_rows(given.rotary_sin, check, "rotary_sin");
  for (const auto& [a, name] : {std::pair{&c.cos, "rotary_cos"}, {&c.sin, "rotary_sin"}}) {
    check.require_dtype_of(*a, name, p.q, "q");
    check.require_dims(*a, name, 2);
    check.require_same_place(*a, name, p.q, "q");
  }
  XF_REQUIRE(check, c.sin.shape[0] == c.cos.shape[0] && c.sin.shape[1] == c.cos.shape[1],
             "rotary_sin",
             "must have the shape of " + check.word("rotary_cos") + " " + c.cos.describe_shape(),
             c.sin.describe_shape(), c.sin);
  c.rotary_dim = 2 * c.cos.shape[1];
  XF_REQUIRE(check, c.rotary_dim > 0 && c.rotary_dim % kRotaryUnit == 0 && c.rotary_dim <= p.d,
             "rotary_cos",
             ".columns must be a multiple of 8, at most half of head_dim (" + number(p.d) + ")",
             number(c.cos.shape[1]), c.cos);
}

// Reads the positions of new keys and of as many queries, once their numbers are known.
void read_positions(Problem& p, const FwdRequest& r, const Checker& check) {
  const char* name = "rotary_positions";
  Cache& c = p.cache;
  if (r.cache.rotary_positions.is_none()) {
    if (c.rotary_dim && !r.cache.tree_mask.is_none())
      check.refuse(name, "must be given with " + check.word("tree_mask") + " and " +
                             check.word("rotary_cos") + ", as nodes of one depth share a position");
    return;
  }
  c.positions = read_table(r.cache.rotary_positions, name, p, check);
  const Array& a = c.positions;
  XF_REQUIRE(check, a.shape[1] == c.added && p.sq == c.added, name,
             "must have a column for each of the " + number(c.added) + " new keys, and " +
                 check.word("q") + " as many rows",
             number(a.shape[1]) + " columns and " + number(p.sq) + " rows", a);
  const Array* seen = seen_by_host(a);
  if (!seen) return;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t i = 0; i < c.added; ++i) {
      const int32_t position = ints_of_host(a)[b * seen->strides[0] + i];
      XF_REQUIRE(check, position >= 0 && position < c.cos.shape[0], name,
                 "must be 0 to the last row of " + check.word("rotary_cos") + " (" +
                     number(c.cos.shape[0] - 1) + ")",
                 number(position) + " at [" + number(b) + ", " + number(i) + "]", a);
    }
  }
}

void read_appended(Problem& p, const FwdRequest& r, const Checker& check) {
  Cache& c = p.cache;
  if (r.k.is_none() != r.v.is_none()) {
    check.refuse(check.word("k") + " and " + check.word("v") + " must be given together");
  }
  read_rotary(p, r, check);
  if (r.k.is_none()) return;
  if (r.cache.cache_seqlens.is_none() && r.cache.cache_length < 0) {
    check.refuse("cache_seqlens",
                 "must be given with " + check.word("k") + " and " + check.word("v"));
  }
  c.new_k = read_new(r.k, "k", p.d, -1, p, check);
  c.added = c.new_k.shape[1];
  c.new_v = read_new(r.v, "v", p.dv, c.added, p, check);
  read_positions(p, r, check);
  for (const auto& [a, name] : {std::pair{&p.k, p.k_name()}, {&p.v, p.v_name()}}) {
    XF_REQUIRE(check, a->writable, name, "must be writable to append to", "one that is read-only",
               *a);
  }
  const auto require_writable = [&](const Array& a, const char* name, bool written) {
    XF_REQUIRE(check, a.writable || !written, name, "must be writable to append to",
               "one that is read-only", a);
  };
  require_writable(c.k_scale, "k_scale", c.scales_of_rows);
  require_writable(c.v_scale, "v_scale", p.writes_v_scale());
}

constexpr auto ints = ints_of_host;

// The rows [first, end) of a sequence that a call reads or writes; it writes the last `added` of
// them.
struct Used {
  int64_t first, end;
};

struct CacheOverflow : py::builtin_exception {
  using builtin_exception::builtin_exception;
  void set_error() const override {
    py::set_error(py::module_::import("xeflash.call.errors").attr("CacheOverflowError"), what());
  }
};

// Checks the number of keys that a sequence has before new ones.
void check_length(const Problem& p, int64_t length, int64_t sequence, const Checker& check) {
  const Cache& c = p.cache;
  const int64_t most = c.capacity - c.added;
  if (length >= 0 && length <= most) return;
  const bool packed_starts = p.packed && !p.used_k.data;
  const char* name = packed_starts ? "cu_seqlens_k" : p.packed ? "seqused_k" : "cache_seqlens";
  const std::string got = number(length) + " for sequence " + number(sequence);
  if (c.kind == CacheKind::kPaged && length > most) {
    check.refuse<CacheOverflow>("block_table", "must have pages of " + number(c.page) +
                                                   " rows for all of " + check.word(name) +
                                                   (c.added ? " and the new keys" : "") + ", got " +
                                                   number(c.table.shape[1]) + " columns with " +
                                                   check.word(name) + " = " + got);
  }
  check.refuse<CacheOverflow>(name, "must be 0 to " + number(most) +
                                        ", the rows that the cache has for a sequence" +
                                        (c.added ? " less the new ones" : "") + ", got " + got);
}

void check_lengths(Problem& p, const FwdRequest& r, const Checker& check, std::vector<Used>& used) {
  Cache& c = p.cache;
  for (int64_t b = 0; b < p.batch; ++b) {
    int64_t length = c.capacity;
    if (c.lengths.data) {
      length = ints(c.lengths)[b];
    } else if (p.used_k.data) {
      length = ints(p.used_k)[b];
    } else if (p.cu_k.data) {
      length = ints(p.cu_k)[b + 1] - ints(p.cu_k)[b];
    } else if (r.cache.cache_length >= 0) {
      length = r.cache.cache_length;
    }
    check_length(p, length, b, check);
    const int64_t pad = c.left_pad.data ? ints(c.left_pad)[b] : 0;
    if (pad < 0 || pad > length) {
      check.refuse("cache_leftpad", "must be 0 to the sequence's length (" + number(length) +
                                        "), got " + number(pad) + " for sequence " + number(b));
    }
    const int64_t end = length + c.added;
    if (c.rotary_dim && !c.positions.data) {
      XF_REQUIRE(check, end <= c.cos.shape[0], "rotary_cos",
                 ".rows must be at least the longest sequence (" + number(end) + ")",
                 number(c.cos.shape[0]), c.cos);
      const int64_t last_q =
          length + (r.causal || r.window_left >= 0 || r.window_right >= 0 ? p.sq : 1);
      XF_REQUIRE(check, last_q <= c.cos.shape[0], "rotary_cos",
                 ".rows must be more than the last position of " + check.word("q") + " (" +
                     number(last_q - 1) + ")",
                 number(c.cos.shape[0]), c.cos);
    }
    const int64_t rows = p.packed ? ints(p.cu_q)[b + 1] - ints(p.cu_q)[b] : p.sq;
    if (c.tree.words.data && end - pad < rows && end > pad)  // a place without a sequence is empty
      check.refuse("tree_mask", "must come with a key for each of the " + number(rows) +
                                    " nodes, got " + number(end - pad) + " keys of sequence " +
                                    number(b));
    const int64_t out_of_sight =
        r.window_left >= 0 && r.window_left < p.sk ? end - rows - r.window_left : 0;
    used.push_back({std::clamp<int64_t>(out_of_sight, pad, length), end});
  }
}

void check_places(const Problem& p, const Checker& check, const std::vector<Used>& used) {
  const Cache& c = p.cache;
  const int64_t places = p.k.shape[0];
  const auto refuse_place = [&](const char* name, int64_t got, int64_t b, int64_t column) {
    check.refuse(name, "must be 0 to " + number(places - 1) + ", got " + number(got) + " at [" +
                           number(b) + ", " + number(column) + "]");
  };
  std::set<std::pair<int64_t, int64_t>> written;
  const auto write = [&](const char* name, int64_t place, int64_t row) {
    if (!written.emplace(place, row).second) {
      check.refuse(name,
                   "must not append two sequences to one place, got " + number(place) + " twice");
    }
  };
  for (int64_t b = 0; b < p.batch; ++b) {
    const auto [first, end] = used[static_cast<size_t>(b)];
    if (c.sequences.data) {
      const int64_t sequence = ints(c.sequences)[b];
      if (sequence < 0 || sequence >= places) refuse_place("cache_batch_idx", sequence, b, 0);
      if (c.added) write("cache_batch_idx", sequence, 0);
    }
    if (c.kind == CacheKind::kPlain) continue;
    const bool paged = c.kind == CacheKind::kPaged;
    const char* name = paged ? "block_table" : "beam_index";
    const int64_t rows = paged ? c.page : 1;
    const int32_t* row = ints(c.table) + b * seen_by_host(c.table)->strides[0];
    for (int64_t i = first / rows; i < (end + rows - 1) / rows; ++i) {
      if (row[i] < 0 || row[i] >= places) refuse_place(name, row[i], b, i);
      if (c.added && (i + 1) * rows > end - c.added) write(name, row[i], paged ? 0 : i);
    }
  }
}

}  // namespace

const char* name_of(CacheKind kind) {
  constexpr const char* kNames[] = {"", "paged", "beam"};
  return kNames[static_cast<uint8_t>(kind)];
}

bool is_quantised(DType dtype) {
  return dtype == DType::kE4M3 || dtype == DType::kE5M2 || dtype == DType::kI8;
}

void check_nibbles(const Problem& p, const char* like, const Checker& check) {
  const std::string with = " with " + check.word(p.v_name()) + " of uint8, which is in 4 bits";
  XF_REQUIRE_DTYPE(check, size_of(p.q.dtype) == 2, p.q, like, "must be float16 or bfloat16" + with);
  XF_REQUIRE_DTYPE(check, is_quantised(p.k.dtype), p.k, p.k_name(),
                   "must be int8 or an 8-bit float" + with);
  const auto require_multiple = [&](const Array& a, const char* name, int64_t columns, int of) {
    XF_REQUIRE(check, columns % of == 0, name,
               ".head_dim must be a multiple of " + std::to_string(of) + with, number(columns), a);
  };
  require_multiple(p.k, p.k_name(), p.k.shape[p.k.ndim - 1], kKeyColumns);
  require_multiple(p.v, p.v_name(), 2 * p.columns_of_v(), kUnitColumns);
}

ScaleArg scale_arg(const Array& a, const Cache& c) {
  const auto stride = [&](int from_end) {
    const int axis = a.ndim - from_end;
    return axis < 0 || a.shape[axis] == 1 ? 0 : a.strides[axis];
  };
  if (a.dtype == DType::kF16) return {{a.data, stride(4), stride(3), stride(2)}, 0};  // of units
  if (c.scales_of_rows) return {{a.data, stride(3), stride(2), stride(1)}, 0};
  return {{a.data, 0, 0, stride(1)}, stride(2)};
}

void read_cache(Problem& p, const FwdRequest& r) {
  const Checker check = checker_of(r);
  Cache& c = p.cache;
  read_places(p, r, check);
  read_scales(p, r.cache.k_scale, r.cache.v_scale, "sequence", check);
  if (!r.cache.cache_seqlens.is_none()) {
    c.lengths = read_int32(r.cache.cache_seqlens, "cache_seqlens", p.batch, p, check);
  }
  read_appended(p, r, check);
  if (r.cache.cache_length < -1) {
    check.refuse("cache_length", "must be -1 (all of the cache) or not negative, got " +
                                     number(r.cache.cache_length));
  }
  if (!p.packed) p.sk = c.capacity;
  c.tree = read_tree(p, r, check);
  c.max_keys = r.cache.cache_length >= 0 ? r.cache.cache_length + c.added : c.capacity;
  if (p.packed) c.max_keys = p.sk;
  std::vector<Used> used;
  const auto tables = {&p.cu_q,     &p.cu_k,      &p.used_k, &c.lengths,
                       &c.left_pad, &c.sequences, &c.table};
  if (std::all_of(tables.begin(), tables.end(), [](const Array* a) { return seen_by_host(*a); })) {
    check_lengths(p, r, check, used);
    check_places(p, check, used);
  } else if (r.cache.cache_length >= 0 && !p.packed) {
    check_length(p, r.cache.cache_length, 0, check);
  }
  if (p.q.queue) {  // a launch must not depend on whether values were checked
    c.max_keys = std::min(c.max_keys, c.capacity);
    return;
  }
  c.max_keys = 0;
  for (const Used& u : used) c.max_keys = std::max(c.max_keys, u.end);
}

}  // namespace xeflash
