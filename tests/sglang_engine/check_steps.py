"""Passes through SGLang's own pools, batches and layers, without an engine: on the CPU, and on xpu where torch has it.

Results are compared with float64, and with SGLang's torch_native backend where that has the feature.
"""

import itertools
import types

import numpy as np
import pytest
import torch
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.mem_cache import memory_pool
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.srt.speculative.eagle_utils import (
    TreeMaskMode,
    build_tree_kernel_efficient,
    organize_draft_results,
    per_step_draft_out_cache_loc,
)
from sglang.srt.speculative.eagle_worker_common import prepare_for_draft
from sglang.srt.speculative.spec_utils import select_top_k_tokens
from tolerance import check_attention
from xeflash.integrations.sglang import register
from xeflash.integrations.sglang_backend import XeflashDraftBackend
from xeflash.selftest.reference import Features

register()

PAGES, PAGE, CONTEXT = 20, 16, 80
LATENT, ROPE = 512, 64
CAUSAL = Features(scale=0.125, window=(-1, 0))


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """One rank, of groups that nobody made; on xpu pools are written by torch, as sgl_kernel's operator is not here."""
    monkeypatch.setattr(memory_pool, "_is_xpu", False)
    with get_parallel().override(attn_tp_size=1, attn_dcp_size=1, attn_dcp_rank=0, dcp_enabled=False):
        yield


class Sequences:
    """Sequences with keys in a pool already, and the tokens that a pass adds."""

    def __init__(
        self, before, new, mode=ForwardMode.EXTEND, device="cpu", dtype=torch.bfloat16, page=PAGE, latent=False,
        forgetful=False, stored=None,
    ):  # fmt: skip
        self.before, self.new, self.mode, self.page = before, new, mode, page
        self.lengths = [a + b for a, b in zip(before, new, strict=True)]
        self.tokens, self.device = sum(new), device
        self.starts = list(itertools.accumulate(new, initial=0))
        self.heads, self.heads_k, self.dim, self.dim_v = (4, 1, LATENT + ROPE, LATENT) if latent else (6, 2, 64, 64)
        with torch.device("cpu"):
            self.q = torch.randn(self.tokens, self.heads, self.dim).to(dtype)
            self.keys = [torch.randn(n, self.heads_k, self.dim).to(dtype) for n in self.lengths]
            values = [torch.randn(n, self.heads_k, self.dim_v).to(dtype) for n in self.lengths]
            self.values = [k[..., :LATENT] for k in self.keys] if latent else values
            pages = 1 + torch.randperm(PAGES).int() if page > 1 else torch.arange(PAGES)
        size = PAGES * PAGE
        said = {"page_size": page, "dtype": stored or dtype, "device": device, "enable_memory_saver": False}
        head_sizes = {"head_num": self.heads_k, "head_dim": self.dim}
        if latent:
            self.pool = MLATokenToKVPool(size, kv_lora_rank=LATENT, qk_rope_head_dim=ROPE, layer_num=1, **said)
        elif forgetful:
            self.pool = SWAKVPool(
                size, size, swa_attention_layer_ids=[0], full_attention_layer_ids=[1], **said, **head_sizes
            )
            moved = (torch.arange(size + page, device="cpu") + 5 * page) % (size + page)  # slots of windows
            self.pool.register_mapping(moved.to(device))
        else:
            self.pool = MHATokenToKVPool(size, layer_num=2, **said, **head_sizes)
        self.requests = ReqToTokenPool(5, CONTEXT, device, False)
        self.rows = [4, 1, 3, 2][: len(new)]
        slots = []
        for b, n in enumerate(self.lengths):
            mine = pages[5 * b : 5 * b + 5, None].to(device) * PAGE + torch.arange(PAGE, device=device)
            self.requests.write((self.rows[b], slice(0, 5 * PAGE)), mine.flatten().int())
            slots.append(self.requests.req_to_token[self.rows[b], :n])
        self.slots = slots

    def batch(self, **more):
        def of(x, dtype=torch.int64):
            return torch.tensor(x, dtype=dtype, device=self.device)

        new_slots = torch.cat([slots[n:] for slots, n in zip(self.slots, self.before, strict=True)]).long()
        guesses = self.mode is ForwardMode.TARGET_VERIFY
        lengths = self.before if guesses else self.lengths
        if not guesses and self.mode is not ForwardMode.DECODE:
            more |= {"extend_seq_lens": of(self.new), "extend_seq_lens_cpu": list(self.new)}
            more |= {"extend_prefix_lens": of(self.before), "extend_prefix_lens_cpu": list(self.before)}
        return ForwardBatch(
            forward_mode=self.mode, batch_size=len(self.new), input_ids=torch.zeros_like(new_slots),
            req_pool_indices=of(self.rows), seq_lens=of(lengths), out_cache_loc=new_slots, seq_lens_sum=sum(lengths),
            seq_lens_cpu=torch.tensor(lengths, device="cpu"), **more,
        )  # fmt: skip

    def backend(self, name="xeflash"):
        config = types.SimpleNamespace(is_encoder_decoder=False, context_len=CONTEXT)
        return ATTENTION_BACKENDS[name](
            types.SimpleNamespace(
                page_size=self.page, token_to_kv_pool=self.pool, req_to_token_pool=self.requests, model_config=config,
                device=self.device,
            )
        )  # fmt: skip

    def layer(self, number=0, **more):
        return RadixAttention(self.heads, self.dim, 0.125, self.heads_k, layer_id=number, v_head_dim=self.dim_v, **more)

    def remember(self, backend, layer, batch):
        """Writes the keys before the pass, whose slots are those of a pass before it."""
        earlier = Sequences.__new__(Sequences)
        earlier.__dict__ |= self.__dict__ | {
            "new": self.before,
            "before": [0] * len(self.before),
            "mode": ForwardMode.EXTEND,
        }
        earlier.lengths, earlier.slots = self.before, [s[:n] for s, n in zip(self.slots, self.before, strict=True)]
        if sum(self.before):
            backend.init_forward_metadata(earlier.batch())
            k, v = (torch.cat([x[:n] for x, n in zip(xs, self.before, strict=True)]) for xs in (self.keys, self.values))
            q = torch.zeros(sum(self.before), self.heads, self.dim, dtype=k.dtype, device="cpu")
            backend.forward_extend(q.to(self.device), k.to(self.device), v.to(self.device), layer, earlier.batch())

    def new_rows(self):
        k, v = (torch.cat([x[n:] for x, n in zip(xs, self.before, strict=True)]) for xs in (self.keys, self.values))
        return self.q.to(self.device), k.to(self.device), v.to(self.device)

    def run(self, layer, backend=None, batch=None, save=True, **more):
        backend, batch = backend or self.backend(), batch or self.batch()
        self.remember(backend, layer, batch)
        backend.init_forward_metadata(batch)
        q, k, v = self.new_rows()
        with forward_context(ForwardContext(attn_backend=backend)):
            return layer(q.flatten(1), k.flatten(1), v.flatten(1), batch, save_kv_cache=save, **more)

    def check(self, output, *features):
        """Compares with what features give, of all sequences or of each."""
        assert output.shape == (self.tokens, self.heads * self.dim_v)
        output = output.unflatten(1, (self.heads, self.dim_v)).cpu()
        for b, (k, v) in enumerate(zip(self.keys, self.values, strict=True)):
            rows = slice(self.starts[b], self.starts[b + 1])
            q, k, v, out = (x.transpose(0, 1)[None] for x in (self.q[rows], k, v, output[rows]))
            with torch.device("cpu"):
                check_attention(f"sequence {b}", q, k, v, features[b % len(features)], out)


MIXED = ((0, 30, 20), (12, 1, 5))  # a prompt, a token, the next chunk of a prompt
BATCHES = {
    "prompts": ((0, 0, 0), (5, 40, 1), ForwardMode.EXTEND),
    "chunks": ((16, 33), (20, 7), ForwardMode.EXTEND),
    "mixed": (*MIXED, ForwardMode.MIXED),
    "tokens": ((17, 0, 44, 15), (1, 1, 1, 1), ForwardMode.DECODE),
}


@pytest.fixture(params=BATCHES)
def batch(request):
    return BATCHES[request.param]


def distance_to_native(s, out, layer):
    return (out.float() - s.run(layer, s.backend("torch_native")).float()).abs().max()


def test_pass_matches_reference_and_native(batch, device):
    s = Sequences(*batch, device=device)
    out = s.run(s.layer())
    s.check(out, CAUSAL)
    assert device != "cpu" or distance_to_native(s, out, s.layer()) < 0.03


@pytest.mark.parametrize("feature", ["window", "softcap", "sinks"])
def test_features_of_a_layer(feature, batch, device):
    s = Sequences(*batch, device=device)
    sinks = torch.arange(s.heads, device="cpu").float()
    said, more, want = {
        "window": (dict(sliding_window_size=8), {}, dict(window=(8, 0))),
        "softcap": (dict(logit_cap=3.0), {}, dict(softcap=3.0)),
        "sinks": ({}, dict(sinks=sinks.to(device)), dict(sinks=sinks)),
    }[feature]
    out = s.run(s.layer(**said), **more)
    s.check(out, CAUSAL.with_(**want))
    assert feature != "window" or device != "cpu" or distance_to_native(s, out, s.layer(**said)) < 0.03


def test_pool_that_keeps_windows_only(batch):
    s = Sequences(*batch, forgetful=True)
    s.check(s.run(s.layer(0, sliding_window_size=8)), CAUSAL.with_(window=(8, 0)))
    s.check(s.run(s.layer(1)), CAUSAL)
    assert s.pool.swa_kv_pool.k_buffer[0].any() and s.pool.full_kv_pool.k_buffer[0].any()
    assert not torch.equal(s.pool.swa_kv_pool.k_buffer[0], s.pool.full_kv_pool.k_buffer[0])


def test_latents(batch):
    s = Sequences(*batch, latent=True)
    out = s.run(s.layer())
    s.check(out, CAUSAL)
    assert distance_to_native(s, out, s.layer()) < 0.06


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("scales", [None, (0.5, 0.25)], ids=["plain", "scaled"])
def test_pool_in_eight_bits(dtype, scales):
    s = Sequences(*MIXED, stored=dtype)
    layer = s.layer()
    if scales:
        layer.k_scale, layer.v_scale = (torch.tensor(x) for x in scales)
        layer.k_scale_float, layer.v_scale_float = scales
    out = s.run(layer)
    for rows, scale in zip((s.keys, s.values), scales or (1, 1), strict=True):
        rows[:] = [((x / scale).to(dtype).float() * scale).bfloat16() for x in rows]
    s.check(out, CAUSAL)


def test_encoders_see_both_sides():
    s = Sequences((0, 0), (12, 5))
    layer = s.layer(attn_type=AttentionType.ENCODER_ONLY)
    out = s.run(layer)
    s.check(out, Features(scale=0.125))
    assert distance_to_native(s, out, layer) < 0.03
    window = s.layer(attn_type=AttentionType.ENCODER_ONLY, sliding_window_size=4)
    s.check(s.run(window), Features(scale=0.125, window=(4, 4)))


def test_keys_that_are_not_kept_are_attended():
    """As in a prompt of a model with latents, whose layer has heads that its pool has not."""
    s = Sequences((0, 0), (12, 5))
    s.check(s.run(s.layer(), save=False), CAUSAL)
    assert not any(buffer.any() for buffer in s.pool.k_buffer)


def test_layers_may_share_keys():
    s = Sequences(*MIXED)
    backend, batch = s.backend(), s.batch()
    s.run(s.layer(), backend, batch)
    out = backend.forward_extend(s.q, None, None, s.layer(), batch)
    s.check(out, CAUSAL)


def chain(width):
    return types.SimpleNamespace(tree_topk=1, num_tokens_per_req=width)


def test_a_chain_of_guesses_is_verified(device):
    s = Sequences((17, 30, 0), (4, 4, 4), ForwardMode.TARGET_VERIFY, device)
    s.check(s.run(s.layer(), batch=s.batch(spec_info=chain(4))), CAUSAL)


def random_trees(before, nodes, mode=TreeMaskMode.FULL_MASK, topk=3, steps=4):
    """Guesses as SGLang makes them, of random probabilities; and which of them each sees, by their links."""
    count, scores, found = len(before), None, []
    for step in range(steps):
        chances = torch.rand(count if step == 0 else count * topk, topk).softmax(-1).sort(descending=True).values
        tokens = torch.randint(97, chances.shape)
        _, _, scores, more = select_top_k_tokens(step, chances, tokens, None, scores, topk)
        found.append(more)
    chosen = organize_draft_results(*(list(x) for x in zip(*found, strict=True)), nodes)
    parents, places, guesses = chosen
    lengths = torch.tensor(before)
    mask, positions, index, child, sibling, draft_token = build_tree_kernel_efficient(
        torch.zeros(count, dtype=torch.int64), parents, places, guesses, lengths, sum(before), topk, steps, nodes, mode
    )
    seen = torch.eye(nodes, dtype=torch.bool).repeat(count, 1, 1)
    for b, node in itertools.product(range(count), range(nodes)):
        below = int(child[b, node])
        while below >= 0:
            seen[b, below] |= seen[b, node]
            below = int(sibling[b, below])
    assert seen.sum(-1).flatten().tolist() == (positions - lengths.repeat_interleave(nodes) + 1).tolist()
    assert not torch.equal(seen[0], seen[0].new_ones(nodes, nodes).tril())
    verify = EagleVerifyInput(
        draft_token, mask, positions, index, child, sibling, None, steps, topk, nodes, None, sum(before), None
    )
    return verify, seen


def in_bits(verify):
    """The mask of guesses alone, in SGLang's smallest elements of bits."""
    nodes = verify.draft_token_num
    size = 1 << max(0, -(-nodes // 8) - 1).bit_length()
    rows = np.packbits(verify.custom_mask.view(-1, nodes).numpy(), axis=1, bitorder="little")
    rows = np.pad(rows, ((0, 0), (0, size - rows.shape[1])))
    verify.custom_mask = torch.from_numpy(rows).view({1: torch.uint8, 2: torch.uint16, 4: torch.uint32}[size]).flatten()


def check_trees(s, output, seen):
    """Each row sees all keys before the guesses, and of these its own path."""
    features = [CAUSAL.with_(window=(-1, -1), mask=torch.cat([torch.ones(len(x), n, dtype=torch.bool), x], 1))
                for n, x in zip(s.before, seen, strict=True)]  # fmt: skip
    s.check(output, *features)


@pytest.mark.parametrize("nodes", [8, 12, 24, 33])
@pytest.mark.parametrize("form", ["all_keys", "guesses", "bits"])
def test_a_tree_of_guesses_is_verified(nodes, form):
    if form == "bits" and nodes > 32:
        pytest.skip("SGLang has no more bits")
    s = Sequences((17, 33, 1), (nodes,) * 3, ForwardMode.TARGET_VERIFY, dtype=torch.float32)
    verify, seen = random_trees(s.before, nodes, TreeMaskMode(form != "all_keys"), topk=4)
    if form == "bits":
        in_bits(verify)
    check_trees(s, s.run(s.layer(), batch=s.batch(spec_info=verify)), seen)


def test_room_of_a_graph_has_the_tree_of_each_replay():
    """The batch of the graph is larger than that of the replay, whose mask has rows of all keys."""
    nodes, places = 8, 3
    first = Sequences((1, 1, 1), (nodes,) * places, ForwardMode.TARGET_VERIFY, dtype=torch.float32)
    backend = first.backend()
    backend.init_cuda_graph_state(places, places * nodes)
    any_mask = torch.ones(5 * nodes * (nodes + 1), dtype=torch.bool)  # SGLang's, of its largest batch
    recorded = types.SimpleNamespace(tree_topk=3, num_tokens_per_req=nodes, draft_token=None, custom_mask=any_mask)
    backend.init_forward_metadata_out_graph(first.batch(spec_info=recorded), in_capture=True)
    room = backend.step
    for before in ((17, 40), (70, 3), (5, 3)):  # the last has as many elements as three trees alone
        s = Sequences((*before, 1), (nodes,) * places, ForwardMode.TARGET_VERIFY, dtype=torch.float32)
        backend.token_to_kv_pool, backend.req_to_token_pool = s.pool, s.requests
        verify, seen = random_trees(before, nodes)
        layer, batch = s.layer(), s.batch(spec_info=verify)
        s.remember(backend, layer, batch)
        backend.init_forward_metadata_out_graph(batch)
        assert backend.step is room
        out = backend.forward_extend(*s.new_rows(), layer, batch)
        check_trees(s, out, [*seen, torch.ones(nodes, nodes, dtype=torch.bool)])


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("topk", [1, 2])
@pytest.mark.parametrize("recorded", [False, True])
def test_a_draft_model_guesses(topk, recorded, window, monkeypatch):
    """Each branch of a tree sees the keys before it, and its own; SGLang's function gives branches their slots."""
    monkeypatch.setattr(ForwardBatch, "init_new", lambda batch, *_, **__: batch)
    steps, before = 4, (17, 14, 33)
    s = Sequences(before, (0, 0, 0), ForwardMode.DECODE, forgetful=window)
    model = types.SimpleNamespace(
        page_size=PAGE, token_to_kv_pool=s.pool, req_to_token_pool=s.requests,
        model_config=types.SimpleNamespace(is_encoder_decoder=False),
        spec_algorithm=types.SimpleNamespace(is_standalone=lambda: True),
    )  # fmt: skip
    backend, layer = XeflashDraftBackend(model, topk, steps), s.layer(sliding_window_size=8 if window else -1)

    def prepared(batch):
        batch.token_to_kv_pool_allocator, batch.device = types.SimpleNamespace(page_size=PAGE), "cpu"
        return prepare_for_draft(types.SimpleNamespace(), s.requests, batch, None, model, topk, steps)[0]

    if recorded:
        backend.init_cuda_graph_state(3, 3 * topk)
        first = Sequences((1, 2, 3), (0, 0, 0), ForwardMode.DECODE).batch()
        backend.init_forward_metadata_out_graph(prepared(first), in_capture=True)
        rooms = [each.step for each in backend.attn_backends]
    s.remember(backend.attn_backends[0], layer, s.batch())
    batch = prepared(s.batch())
    if recorded:
        backend.init_forward_metadata_out_graph(batch)
        assert all(each.step is room for each, room in zip(backend.attn_backends, rooms, strict=True))
    else:
        backend.init_forward_metadata(batch)
    branches = [([k], [v]) for k, v in zip(s.keys, s.values, strict=True) for _ in range(topk)]
    slots = per_step_draft_out_cache_loc(batch.out_cache_loc, len(before), topk, steps)
    for each, batch.out_cache_loc in zip(backend.attn_backends, slots, strict=False):
        q, k, v = (torch.randn(len(branches), heads, s.dim).bfloat16() for heads in (s.heads, s.heads_k, s.heads_k))
        with forward_context(ForwardContext(attn_backend=each)):
            out = layer(q.flatten(1), k.flatten(1), v.flatten(1), batch).view_as(q)
        for b, (keys, values) in enumerate(branches):
            keys.append(k[b, None])
            values.append(v[b, None])
            want = CAUSAL.with_(window=(8, 0)) if window else CAUSAL
            rows = (x.transpose(0, 1)[None] for x in (q[b, None], torch.cat(keys), torch.cat(values), out[b, None]))
            *qkv, got = rows
            check_attention(f"branch {b}, {len(keys) - 1} guesses", *qkv, want, got)


def test_draft_models_extend():
    s = Sequences((17, 30), (4, 4), ForwardMode.DRAFT_EXTEND_V2)
    s.check(s.run(s.layer()), CAUSAL)


@pytest.mark.parametrize("forgetful", [False, True])
@pytest.mark.parametrize("width", [1, 3], ids=["tokens", "guesses"])
def test_room_of_a_graph_has_the_pass_of_each_replay(width, forgetful):
    """Without a recording: what a graph would read is what was there when it was recorded."""
    mode = ForwardMode.DECODE if width == 1 else ForwardMode.TARGET_VERIFY
    guesses = None if width == 1 else chain(width)
    first = Sequences((2, 0), (width, width), mode, forgetful=forgetful)
    backend = first.backend()
    backend.init_cuda_graph_state(2, 2 * width)
    backend.init_forward_metadata_out_graph(first.batch(spec_info=guesses), in_capture=True)
    recorded = backend.step
    for before in ((17, 40), (70, 3)):
        s = Sequences(before, (width, width), mode, forgetful=forgetful)
        backend.token_to_kv_pool, backend.req_to_token_pool = s.pool, s.requests
        layer, batch = s.layer(0, sliding_window_size=8 if forgetful else -1), s.batch(spec_info=guesses)
        s.remember(backend, layer, batch)
        backend.init_forward_metadata_out_graph(batch)
        assert backend.step is recorded
        out = backend.forward_decode(*s.new_rows(), layer, batch)
        s.check(out, CAUSAL.with_(window=(8, 0)) if forgetful else CAUSAL)


def test_refusals():
    s = Sequences(*MIXED)
    with pytest.raises(ValueError, match="page_size must be a multiple of 16, got 1: start SGLang with --page-size 64"):
        Sequences(*MIXED, page=1).backend()
    with (
        pytest.raises(NotImplementedError, match="dcp_size must be 1, got 2"),
        get_parallel().override(attn_dcp_size=2),
    ):
        s.backend()
    for said, message in (
        ({"use_irope": True}, "use_irope of a layer must be False, got True"),
        ({"is_cross_attention": True}, "is_cross_attention of a layer must be False"),
        ({"pos_encoding_mode": "ALIBI"}, "pos_encoding_mode of a layer must be 'NONE', got 'ALIBI'"),
        ({"attn_type": AttentionType.DECODER_BIDIRECTIONAL}, "attn_type of a layer must be .*DECODER"),
        ({"logit_cap": 3.0, "logit_capping_method": "x"}, "logit_capping_method of a layer must be 'tanh', got 'x'"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            s.run(s.layer(**said))
    with pytest.raises(NotImplementedError, match="topk_indices must be None, got Tensor"):
        s.run(s.layer(), topk_indices=s.q)
    with pytest.raises(NotImplementedError, match="rows of the pool must be .* as the layer has them"):
        Sequences(*MIXED, latent=True).run(RadixAttention(4, 192, 0.1, 4, 0, v_head_dim=128), save=False)
    s = Sequences((17, 5), (4, 4), ForwardMode.TARGET_VERIFY, dtype=torch.float32)
    batch = s.batch(spec_info=random_trees(s.before, 4)[0])
    with pytest.raises(NotImplementedError, match="must be -1, or reach all 21 keys, where guesses are a tree.*got 19"):
        s.run(s.layer(sliding_window_size=19), batch=batch)
    s.run(s.layer(sliding_window_size=20), batch=batch)
    for mode, guesses, message in (
        (ForwardMode.TARGET_VERIFY, types.SimpleNamespace(num_tokens_per_req=4), "must have tree_topk"),
        (
            ForwardMode.TARGET_VERIFY,
            types.SimpleNamespace(tree_topk=2, num_tokens_per_req=4),
            "for a tree, custom_mask",
        ),
        (ForwardMode.DECODE, chain(4), "spec_info of a decode step must be None, got SimpleNamespace"),
        (ForwardMode.DLLM_EXTEND, None, "forward_mode DLLM_EXTEND is not supported"),
    ):
        s = Sequences((17,), (4,), mode)
        with pytest.raises(NotImplementedError, match=message):
            s.backend().init_forward_metadata(s.batch(spec_info=guesses))
