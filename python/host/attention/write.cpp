// Writes keys and values to slots of a paged cache.
#include "host/arrays/function.hpp"
#include "host/arrays/place.hpp"
#include "host/attention/desc.hpp"
#include "host/attention/problem.hpp"

namespace xeflash {
namespace {

// The arguments of a call: WriteArguments in call/schema.py has the same.
struct WriteRequest {
  std::string function = "write_to_cache";
  py::object k = py::none(), v = py::none(), k_cache = py::none(), v_cache = py::none();
  py::object slots = py::none(), k_scale = py::none(), v_scale = py::none();
  std::optional<double> k_factor, v_factor;  // scales that are numbers
};

XF_FIELDS(WriteRequest, function, k, v, k_cache, v_cache, slots, k_scale, v_scale, k_factor,
          v_factor);

// Reads the slots of the first tokens. Those that the host sees are checked.
Array read_slots(const Problem& p, const WriteRequest& r, const Checker& check) {
  Array slots = read_array(r.slots, check, "slots");
  XF_REQUIRE_DTYPE(check, slots.dtype == DType::kI64 || slots.dtype == DType::kI32, slots, "slots",
                   "must be int64 or int32");
  XF_REQUIRE(check, slots.ndim == 1 && slots.shape[0] <= p.tokens_q, "slots",
             "must have one dimension of at most " + number(p.tokens_q) + ", the tokens of k",
             slots.describe_shape(), slots);
  check.require_same_place(slots, "slots", p.q, "k");
  if (!slots.is_packed()) slots = packed_copy(std::move(slots), check, "slots");
  let_host_see(slots);
  const Array* seen = seen_by_host(slots);
  for (int64_t i = 0; seen && i < slots.shape[0]; ++i) {
    const int64_t slot = slots.dtype == DType::kI64
                             ? reinterpret_cast<const int64_t*>(seen->data)[i]
                             : reinterpret_cast<const int32_t*>(seen->data)[i];
    if (slot >= p.cache.capacity)
      check.refuse("slots", "must be below " + number(p.cache.capacity) +
                                ", the rows of all pages, or negative to be left out, got " +
                                number(slot) + " at [" + number(i) + "]");
  }
  return slots;
}

Problem read_write(const WriteRequest& r, const Checker& check) {
  Problem p;
  Cache& c = p.cache;
  c.given = true;
  c.kind = CacheKind::kPaged;
  p.q = c.new_k = read_rows(r.k, check, "k");
  c.new_v = read_rows(r.v, check, "v");
  p.k = read_array(r.k_cache, check, "k_cache");
  p.v = read_array(r.v_cache, check, "v_cache");
  check.require_float(c.new_k, "k");
  check.require_dtype_of(c.new_v, "v", c.new_k, "k");
  check.require_dims(c.new_k, "k", 3);
  check.require_dims(c.new_v, "v", 3);
  check.require_same_place(c.new_v, "v", p.q, "k");
  p.tokens_q = p.q.shape[0];
  p.heads_q = p.heads_k = p.q.shape[1];
  p.d = p.q.shape[2];
  p.dv = c.new_v.shape[2];
  const auto require_dim = [&](const Array& a, const char* name) {
    XF_REQUIRE(check, a.shape[2] >= 1 && a.shape[2] <= kMaxHeadDim, name,
               ".head_dim must be 1 to " + number(kMaxHeadDim), number(a.shape[2]), a);
  };
  require_dim(c.new_k, "k");
  require_dim(c.new_v, "v");
  XF_REQUIRE(check, has_shape(c.new_v, {p.tokens_q, p.heads_k, p.dv}), "v",
             "must have the tokens and heads of k " + text_of_shape({p.tokens_q, p.heads_k}),
             c.new_v.describe_shape(), c.new_v);
  const auto check_cache = [&](const Array& a, const char* name, int64_t dim) {
    check.require_dims(a, name, 4);
    const bool is_v = &a == &p.v;
    XF_REQUIRE_DTYPE(
        check, a.dtype == p.q.dtype || is_quantised(a.dtype) || (is_v && a.dtype == DType::kU8), a,
        name,
        std::string("must have the dtype of k (") + name_of(p.q.dtype) + ")" +
            kQuantisedTypes[is_v]);
    check.require_same_place(a, name, p.q, "k");
    XF_REQUIRE(check, has_shape(a, {p.k.shape[0], p.k.shape[1], p.heads_k, dim}), name,
               "must have shape [" + (a.data == p.k.data ? "pages" : number(p.k.shape[0])) + ", " +
                   (a.data == p.k.data ? "page" : number(p.k.shape[1])) + ", " + number(p.heads_k) +
                   ", " + number(dim) + "]",
               a.describe_shape(), a);
    XF_REQUIRE(check, a.has_contiguous_rows(), name, "must have a contiguous last dimension",
               "stride " + number(a.strides[3]), a);
    XF_REQUIRE(check, a.writable, name, "must be writable", "one that is read-only", a);
  };
  check_cache(p.k, "k_cache", p.d);
  check_cache(p.v, "v_cache", p.has_nibbles() ? p.dv / 2 : p.dv);
  if (p.has_nibbles())
    check_nibbles(p, "k", check);
  else
    check.require_dtype_of(p.v, "v_cache", p.k, "k_cache");
  c.page = p.k.shape[1];
  c.capacity = p.k.shape[0] * c.page;
  XF_REQUIRE(check, c.capacity <= kMaxLength, "k_cache", "must have fewer than 2^31 rows",
             number(c.capacity), p.k);
  return p;
}

py::object write_to_cache(const WriteRequest& r, const Checker& check) {
  Problem p = read_write(r, check);
  Cache& c = p.cache;
  const Array slots = read_slots(p, r, check);
  p.batch = slots.shape[0];
  const auto scale = [](const py::object& array, const std::optional<double>& factor) {
    return factor ? py::object(py::float_(*factor)) : array;
  };
  read_scales(p, scale(r.k_scale, r.k_factor), scale(r.v_scale, r.v_factor), "token", check);
  c.added = p.batch;
  check_appended(p, check);
  const Place place = place_of(p.q);
  refuse_to_wait_while_recording(place, p.q, "k", check);
  if (p.batch * p.heads_k * c.capacity == 0) return py::none();

  Desc desc = describe(Algorithm::write_to_cache, p);
  desc.cache = CacheKind::kPlain;  // any
  desc.access = access_of_rows({{&c.new_k, Layout::kTHD},
                                {&c.new_v, Layout::kTHD},
                                {&p.k, Layout::kBSHD},
                                {&p.v, Layout::kBSHD}},
                               place.device.facts.arch);
  const auto groups = static_cast<uint64_t>(p.batch * p.heads_k);
  check_groups(groups, desc.access);
  const Kernels& kernels = find_kernels(desc, place);
  const WriteParams params{
      .k = tensor_arg(c.new_k, Layout::kTHD),
      .v = tensor_arg(c.new_v, Layout::kTHD),
      .k_cache = tensor_arg(p.k, Layout::kBSHD),
      .v_cache = tensor_arg(p.v, Layout::kBSHD),
      .k_scale = scale_arg(c.k_scale, c),
      .v_scale = scale_arg(c.v_scale, c),
      .slots = slots.data,
      .wide_slots = slots.dtype == DType::kI64,
      .page = static_cast<int32_t>(c.page),
      .capacity = static_cast<int32_t>(c.capacity),
      .heads = static_cast<int32_t>(p.heads_k),
      .finds_scales = c.scales_of_rows,
      .k_inverse = 1 / c.k_factor,
      .v_inverse = 1 / c.v_factor,
  };
  count_writes({&p.k, &p.v});
  if (c.scales_of_rows) count_writes({&c.k_scale});
  if (p.writes_v_scale()) count_writes({&c.v_scale});
  submit(place, [&](Launcher& launch) { launch(*kernels.entries[0], params, groups); });
  return py::none();
}

const Offered<WriteRequest, write_to_cache> kOffered("write_to_cache");

}  // namespace
}  // namespace xeflash
