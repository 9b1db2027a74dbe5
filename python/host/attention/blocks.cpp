#include "host/attention/blocks.hpp"

#include "host/attention/part.hpp"
#include "host/device/sizes.hpp"

namespace xeflash {
namespace {

constexpr int64_t kLeastBlock = 16, kMostBlock = 1 << 20;  // rows or keys
constexpr int64_t kOfCondition = 128;    // rows and keys of a block that mask_blocks finds
constexpr int64_t kMostWords = 1 << 30;  // their bytes are counted in 32 bits

}  // namespace

int64_t words_of_blocks(const Problem& p) {
  const int64_t rows = p.row_blocks(), keys = p.key_blocks();
  return 2 * (rows * divide_up(keys, kWord) + keys * divide_up(rows, kWord));
}

void read_blocks(Problem& p, const FwdRequest& r, const Checker& check) {
  const bool has_lists = !r.blocks.is_none();
  const char* name = has_lists ? "blocks" : "mask_mod";
  if (!has_lists && r.mask_mod.is_none()) return;
  require_no_part(name, r, check);
  const auto refuse_with = [&](const char* other) {
    check.refuse<NotImplemented>(name, "must be None with " + check.word(other) + ", got one");
  };
  if (!r.document_ids.is_none()) refuse_with("document_ids");
  if (!r.picks.is_none()) refuse_with("gather_kv_indices");
  if (!r.cache.tree_mask.is_none()) refuse_with("tree_mask");
  if (r.unified_max) refuse_with("unified_max");
  p.mask_mod = read_score_mod(r.mask_mod, p.q, check);
  p.block_rows = has_lists ? r.block_rows : kOfCondition;
  p.block_keys = has_lists ? r.block_keys : kOfCondition;
  for (const auto& [size, word] :
       {std::pair{p.block_rows, "block_rows"}, {p.block_keys, "block_keys"}}) {
    if (size < kLeastBlock || size > kMostBlock || (size & (size - 1)))
      check.refuse(word, "must be a power of two from 16 to " + number(kMostBlock) + ", got " +
                             number(size));
  }
  const int64_t words = words_of_blocks(p);
  if (words >= kMostWords)
    check.refuse(name, "must have fewer than 2^30 words of bits of a head, got " + number(words));
  if (!has_lists) return;
  p.blocks = read_array(r.blocks, check, "blocks");
  const Array& a = p.blocks;
  check.require_dtype(a, "blocks", DType::kI32);
  const bool fits = a.ndim == 3 && (a.shape[0] == p.batch || a.shape[0] == 1) &&
                    (a.shape[1] == p.heads_q || a.shape[1] == 1) && a.shape[2] == words &&
                    a.is_packed();
  XF_REQUIRE(check, fits, "blocks",
             "must be contiguous, of shape " + text_of_shape({p.batch, p.heads_q, words}),
             a.describe_shape(), a);
  check.require_same_place(a, "blocks", p.q, "q");
}

}  // namespace xeflash
