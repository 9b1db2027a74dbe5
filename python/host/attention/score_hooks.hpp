// The changes to scores, and the masks. Biases and score_mods are not here, because their types
// depend on the call.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "host/attention/desc.hpp"
#include "host/attention/problem.hpp"

namespace xeflash {

// A change or a mask: a struct of kernels/attention/, the calls that have it, and its parameters.
struct ScoreHook {
  const char* name;
  bool (*used)(const Problem&, const FwdRequest&);
  void (*set)(FwdParams&, const Problem&, const FwdRequest&);
};

// The changes, in the order in which they are applied to a score.
constexpr ScoreHook kScoreHooks[] = {
    {"SoftCap", [](const Problem&, const FwdRequest& r) { return r.softcap > 0; },
     [](FwdParams& to, const Problem&, const FwdRequest& r) {
       to.softcap = normal_cap(r.softcap);
     }},
    {"Alibi", [](const Problem& p, const FwdRequest&) { return p.alibi.data != nullptr; },
     [](FwdParams& to, const Problem& p, const FwdRequest&) {
       to.alibi = reinterpret_cast<const float*>(p.alibi.data);
       to.alibi_batch = p.alibi.ndim == 2 ? p.alibi.strides[0] : 0;
     }},
    {"Scaled",
     [](const Problem& p, const FwdRequest& r) {  // kernels for anything else do without the sign
       return r.softmax_scale && std::signbit(*r.softmax_scale) && r.softcap == 0 &&
              !p.alibi.data && !p.bias.data && p.score_mod.id == ScoreModId::kNone;
     },
     [](FwdParams&, const Problem&, const FwdRequest&) {}},
};

// The masks; a call has the last one that applies to it.
constexpr ScoreHook kMasks[] = {
    {"Window", [](const Problem&, const FwdRequest&) { return true; },
     [](FwdParams&, const Problem&, const FwdRequest&) {}},
    {"Documents", [](const Problem& p, const FwdRequest&) { return p.documents.data != nullptr; },
     [](FwdParams& to, const Problem& p, const FwdRequest&) {
       to.documents.ids = reinterpret_cast<const int32_t*>(p.documents.data);
       to.documents.batch =
           p.documents.ndim == 2 && p.documents.shape[0] > 1 ? p.documents.strides[0] : 0;
     }},
    {"Chunks",
     [](const Problem& p, const FwdRequest& r) {  // a chunk that has all positions hides nothing
       const bool is_part = !r.part.q_start.is_none() || !r.part.k_start.is_none();
       const bool has_negative = p.sq > 1 && (p.packed || p.cache.given || p.sq > p.sk) &&
                                 !r.causal && r.window_right != 0;  // positions, which see no key
       return r.attention_chunk > 0 &&
              (is_part || has_negative || r.attention_chunk < std::max(p.sq, p.sk));
     },
     [](FwdParams& to, const Problem&, const FwdRequest& r) {
       to.chunk = static_cast<int32_t>(r.attention_chunk);
     }},
    {"Picks", [](const Problem& p, const FwdRequest&) { return p.picks.data != nullptr; },
     [](FwdParams& to, const Problem& p, const FwdRequest&) {
       const auto words = [](const Array& a) { return reinterpret_cast<const int32_t*>(a.data); };
       const auto batch = [](const Array& a) { return a.shape[0] > 1 ? a.strides[0] : 0; };
       to.picks = {words(p.picks), words(p.picked_spans), batch(p.picks), batch(p.picked_spans)};
     }},
    {"Tree",
     [](const Problem& p, const FwdRequest&) { return p.cache.tree.words.data && p.sq > 1; },
     [](FwdParams& to, const Problem& p, const FwdRequest&) {
       const TreeRows& tree = p.cache.tree;
       const int64_t words = tree.words.shape[1];
       to.tree = {reinterpret_cast<const int32_t*>(tree.words.data),
                  tree.is_shared ? 0 : tree.of_sequence * words, static_cast<int32_t>(words),
                  tree.of_sequence == 0};
     }},
    {"Listed", [](const Problem& p, const FwdRequest&) { return p.has_blocks(); },
     [](FwdParams& to, const Problem& p, const FwdRequest&) {
       const auto log2_of = [](int64_t n) { return std::countr_zero(static_cast<uint64_t>(n)); };
       to.blocks.row_shift = log2_of(p.block_rows);
       to.blocks.key_shift = log2_of(p.block_keys);
       to.blocks.rows = static_cast<int32_t>(p.row_blocks());
       to.blocks.keys = static_cast<int32_t>(p.key_blocks());
       if (!p.blocks.data) return;  // mask_blocks finds them
       to.blocks.bits = reinterpret_cast<int32_t*>(p.blocks.data);
       to.blocks.batch = p.blocks.shape[0] > 1 ? p.blocks.strides[0] : 0;
       to.blocks.head = p.blocks.shape[1] > 1 ? p.blocks.strides[1] : 0;
     }},
};

}  // namespace xeflash
