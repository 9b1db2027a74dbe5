#include "host/attention/problem.hpp"

#include <algorithm>

#include "host/arrays/checks.hpp"
#include "host/arrays/overlap.hpp"
#include "host/arrays/place.hpp"
#include "host/attention/blocks.hpp"
#include "host/attention/part.hpp"
#include "host/device/runtime.hpp"
#include "host/device/sizes.hpp"

namespace xeflash {
namespace {

constexpr int64_t kMostChunk = 1 << 30;  // the end of one is counted in 32 bits

// Returns q, k and v, each with its name.
using Named = std::pair<const Array*, const char*>;

void check_array(const Named& named, const Problem& p, int dims, int dims_of_q,
                 const Checker& check) {
  const auto& [a, name] = named;
  const bool is_q = a == &p.q;
  if (!is_q && dims == dims_of_q)
    XF_REQUIRE(check, a->ndim == dims, name,
               "must have the " + number(dims) + " dimensions of " + check.word("q"),
               number(a->ndim), *a);
  check.require_dims(*a, name, dims);
  const bool is_packed = p.cache.given && a == &p.v && a->dtype == DType::kU8;
  XF_REQUIRE_DTYPE(
      check,
      a->dtype == p.q.dtype || is_packed || (p.cache.given && !is_q && is_quantised(a->dtype)), *a,
      name,
      "must have the dtype of " + check.word("q") + " (" + name_of(p.q.dtype) + ")" +
          (p.cache.given ? kQuantisedTypes[a == &p.v] : ""));
  check.require_same_place(*a, name, p.q, "q");
  if (p.cache.given) {
    XF_REQUIRE(check, a->has_contiguous_rows(), name, "must have a contiguous last dimension",
               "stride " + number(a->strides[dims - 1]), *a);
  }
  const int64_t dim = a->shape[dims - 1] * (is_packed ? 2 : 1);
  XF_REQUIRE(check, dim >= 1 && dim <= kMaxHeadDim, name,
             ".head_dim must be 1 to " + number(kMaxHeadDim), number(dim), *a);
}

// Checks which extents of q, k and v must be equal, and which must divide others.
void check_sizes(const Problem& p, const FwdRequest& r, const Axes& axes, const Checker& check) {
  const char *k_name = p.k_name(), *v_name = p.v_name();
  const auto same = [&](const Array& a, const char* name, const char* what, int64_t got,
                        int64_t want, const char* of) {
    XF_REQUIRE(check, got == want, name,
               std::string(".") + what + " must equal " + check.word(of) + "." + what + " (" +
                   number(want) + ")",
               number(got), a);
  };
  same(p.k, k_name, "head_dim", p.k.shape[p.k.ndim - 1], p.d, "q");
  same(p.v, v_name, "heads", p.v.shape[axes.head], p.heads_k, k_name);
  same(p.v, v_name, "length", p.v.shape[axes.row], p.sk, k_name);
  if (p.cache.given) same(p.v, v_name, "batch", p.v.shape[0], p.k.shape[0], k_name);
  if (axes.batch >= 0 && !p.cache.given) {
    for (const auto& [a, name] : {Named{&p.k, k_name}, {&p.v, v_name}}) {
      if (r.layout == Layout::kBHSD && a->shape[axes.batch] == 1) continue;  // broadcast
      same(*a, name, "batch", a->shape[axes.batch], p.batch, "q");
    }
  }
  XF_REQUIRE(check, p.heads_k > 0 ? p.heads_q % p.heads_k == 0 : p.heads_q == 0, k_name,
             ".heads must divide " + check.word("q") + ".heads (" + number(p.heads_q) + ")",
             number(p.heads_k), p.k);
  XF_REQUIRE(check, p.heads_q == p.heads_k || p.heads_k == 1 || r.enable_gqa, k_name,
             ".heads must equal " + check.word("q") + ".heads (" + number(p.heads_q) + ") unless " +
                 check.word("enable_gqa") + "=True",
             number(p.heads_k), p.k);
  XF_REQUIRE(check, p.sq <= kMaxLength, "q", ".length must be below 2^31", number(p.sq), p.q);
  XF_REQUIRE(check, p.sk <= kMaxLength, k_name, ".length must be below 2^31", number(p.sk), p.k);
}

void read_qkv(Problem& p, const FwdRequest& r, const Checker& check) {
  p.packed = r.layout == Layout::kTHD;
  p.cache.given = r.cache.given;
  p.q = read_rows(r.q, check, "q");
  p.k = read_array(p.cache.given ? r.cache.k_cache : r.k, check, p.k_name());
  p.v = read_array(p.cache.given ? r.cache.v_cache : r.v, check, p.v_name());
  if (!p.cache.given) {  // a cache is used where it is
    p.k = with_contiguous_rows(std::move(p.k), check, p.k_name());
    p.v = with_contiguous_rows(std::move(p.v), check, p.v_name());
  }
  const int dims_of_q = p.packed ? 3 : 4, dims = p.packed && !p.cache.given ? 3 : 4;
  check.require_float(p.q, "q");
  check_array({&p.q, "q"}, p, dims_of_q, dims_of_q, check);
  check_array({&p.k, p.k_name()}, p, dims, dims_of_q, check);
  check_array({&p.v, p.v_name()}, p, dims, dims_of_q, check);
  if (p.has_nibbles())
    check_nibbles(p, "q", check);
  else
    check.require_dtype_of(p.v, p.v_name(), p.k, p.k_name());
  const Axes axes_q = axes_of(r.layout), axes = axes_of(p.k_layout(r.layout));
  p.d = p.q.shape[dims_of_q - 1];
  p.dv = p.columns_of_v() * (p.has_nibbles() ? 2 : 1);
  p.heads_q = p.q.shape[axes_q.head];
  p.heads_k = p.k.shape[axes.head];
  p.sq = p.tokens_q = p.q.shape[axes_q.row];
  p.sk = p.tokens_k = p.k.shape[axes.row];
  if (axes_q.batch >= 0) p.batch = p.q.shape[axes_q.batch];
  check_sizes(p, r, axes, check);
}

}  // namespace

Array read_int32(const py::object& object, const char* name, int64_t size, const Problem& p,
                 const Checker& check) {
  Array a = read_array(object, check, name);
  check.require_dtype(a, name, DType::kI32);
  check.require_dims(a, name, 1);
  if (size >= 0)
    XF_REQUIRE(check, a.shape[0] == size, name, "must have " + number(size) + " entries",
               number(a.shape[0]), a);
  XF_REQUIRE(check, a.is_packed(), name, "must be contiguous", "strides " + a.describe_strides(),
             a);
  check.require_same_place(a, name, p.q, "q");
  let_host_see(a);
  return a;
}

namespace {

// Checks the starts of packed sequences, if the host sees them.
void check_starts(const Array& a, const char* name, int64_t longest, const char* longest_name,
                  const Checker& check) {
  if (!seen_by_host(a)) return;
  const int32_t* starts = ints_of_host(a);
  XF_REQUIRE(check, starts[0] == 0, name, "must start with 0", number(starts[0]), a);
  for (int64_t i = 1; i < a.shape[0]; ++i) {
    const int64_t length = static_cast<int64_t>(starts[i]) - starts[i - 1];
    XF_REQUIRE(check, length >= 0, name, "must not decrease",
               number(starts[i]) + " after " + number(starts[i - 1]), a);
    if (length > longest) {
      check.refuse(longest_name, "must be at least the longest sequence (" + number(length) +
                                     "), got " + number(longest));
    }
  }
}

void check_end(const Array& a, const char* name, int64_t tokens, const Checker& check) {
  if (!seen_by_host(a)) return;
  const int64_t end = ints_of_host(a)[a.shape[0] - 1];
  XF_REQUIRE(check, end == tokens, name,
             "must end with the number of packed rows (" + number(tokens) + ")", number(end), a);
}

void read_packing(Problem& p, const FwdRequest& r, const Checker& check) {
  if (!p.packed) return;
  p.cu_q = read_int32(r.cu_seqlens_q, "cu_seqlens_q", -1, p, check);
  XF_REQUIRE(check, p.cu_q.shape[0] >= 1, "cu_seqlens_q", "must have batch + 1 entries", "0",
             p.cu_q);
  p.batch = p.cu_q.shape[0] - 1;
  // Pages need no starts, only lengths.
  const bool starts = !r.cu_seqlens_k.is_none() || !p.cache.given || r.seqused_k.is_none();
  if (starts) p.cu_k = read_int32(r.cu_seqlens_k, "cu_seqlens_k", p.batch + 1, p, check);
  if (r.max_seqlen_q < 0 || r.max_seqlen_q > kMaxLength)
    check.refuse("max_seqlen_q", "must be 0 to 2^31 - 1, got " + number(r.max_seqlen_q));
  if (r.max_seqlen_k < 0 || r.max_seqlen_k > kMaxLength)
    check.refuse("max_seqlen_k", "must be 0 to 2^31 - 1, got " + number(r.max_seqlen_k));
  check_starts(p.cu_q, "cu_seqlens_q", r.max_seqlen_q, "max_seqlen_q", check);
  check_end(p.cu_q, "cu_seqlens_q", p.tokens_q, check);
  if (starts) check_starts(p.cu_k, "cu_seqlens_k", r.max_seqlen_k, "max_seqlen_k", check);
  if (!p.cache.given) check_end(p.cu_k, "cu_seqlens_k", p.tokens_k, check);
  // No sequence is longer than all of them together.
  p.sq = std::min(r.max_seqlen_q, p.tokens_q);
  p.sk = p.cache.given ? r.max_seqlen_k : std::min(r.max_seqlen_k, p.tokens_k);
  if (r.seqused_k.is_none()) return;
  p.used_k = read_int32(r.seqused_k, "seqused_k", p.batch, p, check);
  if (!seen_by_host(p.used_k)) return;
  const int32_t *used = ints_of_host(p.used_k), *start = ints_of_host(p.cu_k);
  for (int64_t i = 0; i < p.batch; ++i) {
    const int64_t length = starts ? start[i + 1] - start[i] : r.max_seqlen_k;
    XF_REQUIRE(check, used[i] >= 0 && used[i] <= length, "seqused_k",
               "must be 0 to the sequence's length (" + number(length) + ")", number(used[i]),
               p.used_k);
  }
}

void read_score_arrays(Problem& p, const FwdRequest& r, const Checker& check) {
  if (!r.attn_mask.is_none()) {
    p.bias = with_whole_strides(read_array(r.attn_mask, check, "attn_mask"), check, "attn_mask");
    XF_REQUIRE_DTYPE(
        check,
        p.bias.dtype == DType::kBool || p.bias.dtype == DType::kF32 || p.bias.dtype == p.q.dtype,
        p.bias, "attn_mask", "must be bool, float32 or the dtype of " + check.word("q"));
    check.require_same_place(p.bias, "attn_mask", p.q, "q");
    const std::array<int64_t, 4> full = {p.batch, p.heads_q, p.sq, p.sk};
    bool fits = p.bias.ndim <= 4;
    for (int i = 0; fits && i < p.bias.ndim; ++i) {
      const int64_t n = p.bias.shape[p.bias.ndim - 1 - i];
      fits = n == 1 || n == full[3 - i];
    }
    XF_REQUIRE(check, fits, "attn_mask",
               "must broadcast to " + text_of_shape({full.begin(), full.end()}),
               p.bias.describe_shape(), p.bias);
  }
  if (!r.alibi_slopes.is_none()) {
    p.alibi = read_array(r.alibi_slopes, check, "alibi_slopes");
    check.require_dtype(p.alibi, "alibi_slopes", DType::kF32);
    XF_REQUIRE(check, has_shape(p.alibi, {p.heads_q}) || has_shape(p.alibi, {p.batch, p.heads_q}),
               "alibi_slopes",
               "must have shape " + text_of_shape({p.heads_q}) + " or " +
                   text_of_shape({p.batch, p.heads_q}),
               p.alibi.describe_shape(), p.alibi);
    p.alibi = with_contiguous_rows(std::move(p.alibi), check, "alibi_slopes");
    check.require_same_place(p.alibi, "alibi_slopes", p.q, "q");
  }
  if (!r.s_aux.is_none()) {
    const char* name = "s_aux";
    p.sinks = read_array(r.s_aux, check, name);
    XF_REQUIRE_DTYPE(check, is_float(p.sinks.dtype), p.sinks, name, "must be a floating type");
    XF_REQUIRE(check, has_shape(p.sinks, {p.heads_q}), name,
               "must have shape [" + number(p.heads_q) + "]", p.sinks.describe_shape(), p.sinks);
    check.require_same_place(p.sinks, name, p.q, "q");
    p.sinks = with_contiguous_rows(as_float32(std::move(p.sinks), check, name), check, name);
  }
}

// Refuses a second mask beside a window in calls that have no whole, dense sequences, or that have
// chunks.
void require_window_alone(const char* name, const Problem& p, const FwdRequest& r,
                          const Checker& check) {
  if (p.cache.given) refuse_array(name, "a cache of keys", check);
  if (p.packed) refuse_array(name, check.word("cu_seqlens_q"), check);
  require_no_part(name, r, check);
}

// Reads the document ids of the positions of k. The queries are at the last of these positions.
void read_documents(Problem& p, const FwdRequest& r, const Checker& check) {
  const char* name = "document_ids";
  if (r.document_ids.is_none()) return;
  require_window_alone(name, p, r, check);
  p.documents = read_array(r.document_ids, check, name);
  const Array& a = p.documents;
  check.require_dtype(a, name, DType::kI32);
  const bool fits = (a.ndim == 1 || (a.ndim == 2 && (a.shape[0] == p.batch || a.shape[0] == 1))) &&
                    a.shape[a.ndim - 1] == p.sk;
  XF_REQUIRE(check, fits, name,
             "must have shape " + text_of_shape({p.sk}) + " or " + text_of_shape({p.batch, p.sk}) +
                 ", an id per row of " + check.word(p.k_name()),
             a.describe_shape(), a);
  constexpr int64_t kMostIds = 1 << 30;  // their bytes are counted in 32 bits
  XF_REQUIRE(check, p.sk < kMostIds, name, "must have fewer than 2^30 ids of a sequence",
             number(p.sk), a);
  check.require_same_place(a, name, p.q, "q");
  if (p.sq > p.sk)
    check.refuse("q", ".length must be at most " + check.word(p.k_name()) + ".length (" +
                          number(p.sk) + ") with " + check.word("document_ids") +
                          ", as queries are the last positions of keys, got " + number(p.sq));
  if (!r.bottom_right && p.sq != p.sk)
    check.refuse("bottom_right", "must be True with " + check.word("document_ids") + " where " +
                                     check.word("q") + " is shorter than " +
                                     check.word(p.k_name()) +
                                     ", as queries are the last positions of keys, got False");
  p.documents = with_contiguous_rows(std::move(p.documents), check, name);
}

// Reads the bits of the keys that are picked for each row, and the words that say which keys any
// row of a span picked.
void read_picks(Problem& p, const FwdRequest& r, const Checker& check) {
  if (r.picks.is_none() != r.picked_spans.is_none())
    check.refuse(check.word("picks") + " and " + check.word("picked_spans") +
                 " must be given together");
  if (r.picks.is_none()) return;
  const char* list = "gather_kv_indices";
  require_window_alone(list, p, r, check);
  if (!r.document_ids.is_none())
    check.refuse<NotImplemented>(
        list, "must be None with " + check.word("document_ids") + ", got an array");
  const auto read = [&](const py::object& object, const char* name, int64_t rows) {
    Array a = read_array(object, check, name);
    const int64_t words = divide_up(p.sk, kWord);
    check.require_dtype(a, name, DType::kI32);
    const bool fits = a.ndim == 3 && (a.shape[0] == p.batch || a.shape[0] == 1) &&
                      a.shape[1] == rows && a.shape[2] == words && a.is_packed();
    XF_REQUIRE(check, fits, name,
               "must be contiguous, of shape " + text_of_shape({p.batch, rows, words}),
               a.describe_shape(), a);
    check.require_same_place(a, name, p.q, "q");
    constexpr int64_t kMostWords = 1 << 30;  // their bytes are counted in 32 bits
    XF_REQUIRE(check, rows * words < kMostWords, name, "must have fewer than 2^30 words of a row",
               number(rows * words), a);
    return a;
  };
  p.picks = read(r.picks, "picks", p.sq);
  p.picked_spans = read(r.picked_spans, "picked_spans", divide_up(p.sq, kSpan));
}

void check_finite(double x, const char* name, const Checker& check) {
  check.require(fits_float(static_cast<float>(x)), name, "finite in float32", x);
}

// Refuses numbers that are not finite, or that break a rule of their own.
void check_numbers(const FwdRequest& r, const Checker& check) {
  check.require(r.softcap >= 0 && fits_float(static_cast<float>(r.softcap)), "softcap",
                "0 (off) or positive and finite in float32", r.softcap);
  check.require(r.dropout_p >= 0 && r.dropout_p <= 1, "dropout_p", "0 to 1", r.dropout_p);
  const auto check_one = [&](const auto& f) {
    const auto& x = r.*f.member;
    using T = std::remove_cvref_t<decltype(x)>;
    if constexpr (std::is_same_v<T, double>) check_finite(x, f.name, check);
    if constexpr (std::is_same_v<T, std::optional<double>>)
      check_finite(x.value_or(0), f.name, check);
  };
  std::apply([&](const auto&... f) { (check_one(f), ...); }, kFieldsOf<FwdRequest>);
  for (int64_t side : {r.window_left, r.window_right}) {
    if (side < -1)
      check.refuse("window_size", "must be -1 (unlimited) or not negative, got " + number(side));
  }
  if (r.attention_chunk < 0 || r.attention_chunk > kMostChunk)
    check.refuse("attention_chunk", "must be 0 (off) to 2^30, got " + number(r.attention_chunk));
}

// Calls f for each array of a call but `out`.
template <class Visit>
void each_input(const Problem& p, Visit visit) {
  const Cache& c = p.cache;
  if (p.q.data != p.cache.new_k.data) visit(p.q, "q");  // write_to_cache has no q
  visit(p.k, p.k_name());
  visit(p.v, p.v_name());
  visit(p.bias, "attn_mask");
  visit(p.alibi, "alibi_slopes");
  visit(p.sinks, "s_aux");
  visit(p.documents, "document_ids");
  visit(p.picks, "picks");
  visit(p.picked_spans, "picked_spans");
  for (const Array& a : p.score_mod.arrays) visit(a, "captures");
  visit(p.cu_q, "cu_seqlens_q");
  visit(p.cu_k, "cu_seqlens_k");
  visit(p.used_k, "seqused_k");
  visit(p.part.other_lse, "other_lse");
  visit(p.part.q_starts, "q_start");
  visit(p.part.k_starts, "k_start");
  visit(c.lengths, "cache_seqlens");
  visit(c.sequences, "cache_batch_idx");
  visit(c.left_pad, "cache_leftpad");
  visit(c.table, c.kind == CacheKind::kBeam ? "beam_index" : "block_table");
  visit(c.k_scale, "k_scale");
  visit(c.v_scale, "v_scale");
  visit(c.tree.words, "tree_mask");
  visit(c.new_k, "k");
  visit(c.new_v, "v");
  visit(c.cos, "rotary_cos");
  visit(c.sin, "rotary_sin");
  visit(c.positions, "rotary_positions");
}

// Returns whether K and V are views of one pool of pages in which they stay apart. The table of a
// sequence gives numbers of pages, and the page of K and the page of V of one number share no
// memory.
bool pages_lie_apart(const Problem& p) {
  if (p.cache.kind != CacheKind::kPaged || p.k.strides[0] != p.v.strides[0]) return false;
  Array k = p.k, v = p.v;
  k.shape[0] = v.shape[0] = 1;
  return !overlap(k, v);
}

// Checks that an array that is written shares no memory with others, and that no two of its
// elements do.
void refuse_shared(const Array& written, const char* name, const Problem& p, const Checker& check) {
  XF_REQUIRE(check, !overlaps_itself(written), name, "must not have elements in one place",
             "strides that meet", written);
  each_input(p, [&](const Array& a, const char* other) {
    if (&a == &written) return;
    const bool both = (&a == &p.k && &written == &p.v) || (&a == &p.v && &written == &p.k);
    if (both && pages_lie_apart(p)) return;
    XF_REQUIRE(check, !overlap(written, a.copied ? *a.copied : a), name,
               "must not share memory with " + check.word(other), "arrays that overlap", written);
  });
}

}  // namespace

void check_appended(const Problem& p, const Checker& check) {
  if (p.cache.added == 0) return;
  refuse_shared(p.k, p.k_name(), p, check);
  refuse_shared(p.v, p.v_name(), p, check);
  if (p.cache.scales_of_rows) refuse_shared(p.cache.k_scale, "k_scale", p, check);
  if (p.writes_v_scale()) refuse_shared(p.cache.v_scale, "v_scale", p, check);
}

namespace {

// Reads an array that a kernel writes as it writes the output.
Array written_like_out(const py::object& object, const char* name, const Problem& p,
                       const Checker& check) {
  Array a = read_array(object, check, name);
  if (p.part.other_lse.data) {
    XF_REQUIRE_DTYPE(check, a.dtype == DType::kF32, a, name,
                     "must be float32 with " + check.word("other_lse"));
  } else {
    XF_REQUIRE_DTYPE(check, a.dtype == p.q.dtype, a, name,
                     "must have the dtype of " + check.word("q"));
  }
  check.require_same_place(a, name, p.q, "q");
  check_like_out(a, name, p, check);
  require_own_memory(a, name, p, check);
  return a;
}

}  // namespace

void check_like_out(const Array& a, const char* name, const Problem& p, const Checker& check) {
  bool fits = a.ndim == p.q.ndim && a.shape[a.ndim - 1] == p.dv;
  for (int i = 0; fits && i < a.ndim - 1; ++i) fits = a.shape[i] == p.q.shape[i];
  XF_REQUIRE(check, fits, name,
             "must have the shape of " + check.word("q") + " with head_dim " + number(p.dv),
             a.describe_shape(), a);
}

void require_own_memory(const Array& a, const char* name, const Problem& p, const Checker& check) {
  XF_REQUIRE(check, a.has_contiguous_rows(), name, "must have a contiguous last dimension",
             "stride " + number(a.strides[a.ndim - 1]), a);
  XF_REQUIRE(check, a.writable, name, "must be writable", "one that is read-only", a);
  refuse_shared(a, name, p, check);
}

Axes axes_of(Layout layout) {
  switch (layout) {
    case Layout::kBSHD:
      return {0, 1, 2};
    case Layout::kBHSD:
      return {0, 2, 1};
    default:
      return {-1, 0, 1};
  }
}

TensorArg tensor_arg(const Array& a, Layout layout) {
  const Axes axes = axes_of(layout);
  TensorArg t{a.data, 0, a.strides[axes.row], a.strides[axes.head]};
  if (axes.batch >= 0 && a.shape[axes.batch] > 1) t.batch = a.strides[axes.batch];
  return t;
}

Problem read_problem(const FwdRequest& r) {
  const Checker check = checker_of(r);
  check_numbers(r, check);
  Problem p;
  read_qkv(p, r, check);
  read_packing(p, r, check);
  if (p.cache.given) read_cache(p, r);
  if (r.num_splits < 0 || r.num_splits > kMaxSplits) {
    check.refuse("num_splits", "must be 0 (automatic) to " + number(kMaxSplits) + ", got " +
                                   number(r.num_splits));
  }
  read_score_arrays(p, r, check);
  read_documents(p, r, check);
  read_picks(p, r, check);
  read_blocks(p, r, check);
  read_part(p, r, check);
  p.score_mod = read_score_mod(r.score_mod, p.q, check);
  check_appended(p, check);
  if (r.unified_max && p.sq != 1) {
    check.refuse<NotImplemented>("unified_max", "is there for one query only, got " +
                                                    check.word("q") + ".length = " + number(p.sq));
  }
  if (p.batch > kMaxLength || p.heads_q > kMaxLength) {
    check.refuse("q", ".batch and .heads must be below 2^31, got " + number(p.batch) + " and " +
                          number(p.heads_q));
  }
  return p;
}

Array result_array(const Problem& p, const FwdRequest& r) {
  if (!r.out.is_none()) return written_like_out(r.out, "out", p, checker_of(r));
  const Axes axes = axes_of(r.layout);
  if (p.packed) return new_array(p.q, p.q.dtype, {p.tokens_q, p.heads_q, p.dv});
  return new_array(p.q, p.q.dtype,
                   {p.batch, p.q.shape[std::min(axes.row, axes.head)],
                    p.q.shape[std::max(axes.row, axes.head)], p.dv});
}

Array rest_array(const Problem& p, const FwdRequest& r) {
  if (r.residual.is_none()) return {};
  const Checker check = checker_of(r);
  Array residual = written_like_out(r.residual, "residual", p, check);
  check_residual(residual, check);
  return residual;
}

void check_residual(const Array& residual, const Checker& check) {
  XF_REQUIRE_DTYPE(check, size_of(residual.dtype) == 2, residual, "residual", "must be of 16 bits");
}

}  // namespace xeflash
