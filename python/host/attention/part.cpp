#include "host/attention/part.hpp"

#include "host/arrays/checks.hpp"

namespace xeflash {
namespace {

// Reads a start, which is one number or an array of one number per sequence.
void read_start(const py::object& object, const char* name, int64_t length, int32_t& number,
                Array& array, const Problem& p, const FwdRequest& r, const Checker& check) {
  if (object.is_none()) return;
  if (r.bottom_right)
    check.refuse(name, "must come with " + check.word("bottom_right") + "=False, got True");
  if (!PyLong_Check(object.ptr())) {
    array = read_int32(object, name, p.batch, p, check);
    if (r.dropout_p > 0)
      check.refuse<NotImplemented>(
          name, "must be one number with dropout, got shape " + array.describe_shape());
    return;
  }
  const int64_t start = object.cast<int64_t>();
  if (start < 0 || start > kMaxLength - length)
    check.refuse(name, "must be 0 to " + std::to_string(kMaxLength - length) +
                           ", as positions are below 2^31, got " + std::to_string(start));
  number = static_cast<int32_t>(start);
}

}  // namespace

void read_part(Problem& p, const FwdRequest& r, const Checker& check) {
  Part& part = p.part;
  read_start(r.part.q_start, "q_start", p.sq, part.q_start, part.q_starts, p, r, check);
  read_start(r.part.k_start, "k_start", p.sk, part.k_start, part.k_starts, p, r, check);
  if (r.dropout_p > 0 && part.q_start % 8 != 0)
    check.refuse<NotImplemented>(
        "q_start", "must be a multiple of 8 with dropout, got " + std::to_string(part.q_start));
  if (!r.cache.rotary_cos.is_none() && !(r.part.q_start.is_none() && r.part.k_start.is_none()))
    check.refuse<NotImplemented>("rotary_cos", "must not be given with " + check.word("q_start") +
                                                   " or " + check.word("k_start") +
                                                   ", as rotations begin at " +
                                                   check.word("cache_seqlens") + ", got an array");
  const int64_t first = r.part.first_head, all = r.part.all_heads ? r.part.all_heads : p.heads_q;
  if (first < 0 || all > kMaxLength || first > all - p.heads_q)
    check.refuse("first_head", "must be 0 to " + check.word("all_heads") + " - " + check.word("q") +
                                   ".heads (" + std::to_string(all - p.heads_q) + "), got " +
                                   std::to_string(first));
  part.first_head = static_cast<int32_t>(first);
  part.all_heads = static_cast<int32_t>(all);
  if (r.part.other_lse.is_none()) return;
  part.other_lse = read_lse(r.part.other_lse, "other_lse", p, check);
  if (r.out.is_none())
    check.refuse("out", "must be given with " + check.word("other_lse") + ", got None");
  if (!r.residual.is_none())
    check.refuse("residual", "must be None with " + check.word("other_lse") + ", got an array");
  if (p.cache.given)
    check.refuse<NotImplemented>("other_lse", "must be None with a cache of keys, got an array");
}

Array read_like_lse(const py::object& object, const char* name, const Problem& p,
                    const Checker& check) {
  Array a = with_whole_strides(read_array(object, check, name), check, name);
  check.require_dtype(a, name, DType::kF32);
  check.require_same_place(a, name, p.q, "q");
  const bool fits =
      p.packed ? has_shape(a, {p.heads_q, p.tokens_q}) : has_shape(a, {p.batch, p.heads_q, p.sq});
  XF_REQUIRE(check, fits, name, "must have the shape of the log-sum-exp", a.describe_shape(), a);
  return a;
}

Array read_lse(const py::object& object, const char* name, const Problem& p, const Checker& check) {
  Array lse = read_like_lse(object, name, p, check);
  XF_REQUIRE(check, lse.is_packed(), name, "must be contiguous",
             "strides " + lse.describe_strides(), lse);
  return lse;
}

Array read_sum(const py::object& object, const char* name, const Array& like, const char* like_name,
               const Problem& p, const Checker& check) {
  Array a = read_array(object, check, name);
  check.require_dtype(a, name, DType::kF32);
  check.require_same_place(a, name, p.q, "q");
  const std::vector<int64_t> shape(like.shape.begin(), like.shape.begin() + like.ndim);
  XF_REQUIRE(check, has_shape(a, shape), name, "must have the shape of " + check.word(like_name),
             a.describe_shape(), a);
  require_own_memory(a, name, p, check);
  return a;
}

void refuse_array(const char* name, const std::string& other, const Checker& check) {
  check.refuse<NotImplemented>(name, "must be None with " + other + ", got an array");
}

void require_no_part(const char* name, const FwdRequest& r, const Checker& check) {
  const PartRequest& part = r.part;
  if (r.attention_chunk > 0) refuse_array(name, check.word("attention_chunk"), check);
  if (!part.other_lse.is_none() || !part.q_start.is_none() || !part.k_start.is_none())
    refuse_array(
        name,
        check.word("other_lse") + ", " + check.word("q_start") + " or " + check.word("k_start"),
        check);
}

}  // namespace xeflash
