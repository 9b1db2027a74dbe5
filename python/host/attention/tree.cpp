#include "host/attention/tree.hpp"

#include <algorithm>

#include "attention/params.hpp"
#include "host/arrays/checks.hpp"
#include "host/arrays/place.hpp"
#include "host/attention/problem.hpp"

namespace xeflash {
namespace {

constexpr const char* kName = "tree_mask";

// Refuses what counts keys by their places in the cache, which are not the depths of nodes.
void refuse_places(const FwdRequest& r, const Checker& check) {
  const std::string with = " with " + check.word(kName) + ", ";
  if (r.causal) check.refuse("causal", "must be False" + with + "which has the order, got True");
  const std::string places = with + "as nodes of one depth have one position";
  if (r.window_left >= 0 || r.window_right >= 0)
    check.refuse<NotImplemented>("window_size", "must be (-1, -1)" + places + ", got (" +
                                                    number(r.window_left) + ", " +
                                                    number(r.window_right) + ")");
  if (r.attention_chunk > 0)
    check.refuse<NotImplemented>("attention_chunk",
                                 "must be 0" + places + ", got " + number(r.attention_chunk));
  if (!r.alibi_slopes.is_none())
    check.refuse<NotImplemented>("alibi_slopes", "must be None" + places + ", got an array");
}

// Refuses a node that does not see itself, if the host sees the words and the starts of sequences.
void check_diagonal(const TreeRows& tree, const Problem& p, const Checker& check) {
  const int32_t *words = ints_of_host(tree.words), *starts = ints_of_host(p.cu_q);
  if (!words || (p.packed && !starts)) return;
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t nodes = p.packed ? starts[b + 1] - starts[b] : p.sq;
    const int64_t first =
        tree.of_sequence ? (tree.is_shared ? 0 : b * tree.of_sequence) : starts[b];
    for (int64_t i = 0; i < nodes; ++i) {
      const int32_t word = words[(first + i) * tree.words.shape[1] + i / kWord];
      if (!(word >> i % kWord & 1))
        check.refuse(kName, "must let each node see itself, got node " + number(i) +
                                " of sequence " + number(b) + ", which does not");
    }
  }
}

}  // namespace

TreeRows read_tree(const Problem& p, const FwdRequest& r, const Checker& check) {
  TreeRows tree;
  if (r.cache.tree_mask.is_none()) return tree;
  refuse_places(r, check);
  if (p.sq > kMostNodes)
    check.refuse<NotImplemented>(
        kName, "must have at most " + number(kMostNodes) + " nodes, got " + number(p.sq));
  Array& a = tree.words;
  a = read_array(r.cache.tree_mask, check, kName);
  check.require_dtype(a, kName, DType::kI32);
  check.require_same_place(a, kName, p.q, "q");
  const int64_t rows = p.packed ? p.tokens_q : p.batch * p.sq;
  const bool of_sequences = a.ndim == 3 && (a.shape[0] == 1 || a.shape[0] == p.batch) &&
                            (p.packed ? a.shape[1] >= p.sq : a.shape[1] == p.sq);
  const std::string length = number(p.sq);
  XF_REQUIRE(check, of_sequences || (a.ndim == 2 && a.shape[0] == rows), kName,
             "must have " + length + " rows for each sequence, (" + number(p.batch) + ", " +
                 length + ", words), or for all, (1, " + length + ", words), or be (" +
                 number(rows) + ", words)",
             a.describe_shape(), a);
  // Rows of packed queries do not say how many nodes a sequence may have.
  const int64_t nodes = a.ndim == 3 ? a.shape[1] : p.sq, words = a.shape[a.ndim - 1];
  const int64_t least = divide_up(nodes, kWord);
  const int64_t most = a.ndim == 2 && p.packed ? divide_up(r.max_seqlen_q, kWord) : least;
  XF_REQUIRE(check, words >= least && words <= std::min(most, kMostNodes / kWord), kName,
             "must have a last dimension of ceil(" + number(nodes) + " / 32) = " + number(least),
             number(words), a);
  if (of_sequences) {
    tree.is_shared = a.shape[0] == 1 || a.strides[0] == 0;
    if (tree.is_shared) a.shape[0] = 1;
    tree.of_sequence = a.shape[1];
  } else if (!p.packed) {
    tree.of_sequence = p.sq;
  }
  if (!a.is_packed()) a = packed_copy(std::move(a), check, kName);
  if (of_sequences) {
    a.shape = {a.shape[0] * a.shape[1], words};
    a.strides = {words, 1};
    a.ndim = 2;
  }
  let_host_see(a);
  check_diagonal(tree, p, check);
  return tree;
}

}  // namespace xeflash
