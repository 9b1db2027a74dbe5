"""A step's metadata and attention by vLLM's own classes, without an engine: on the CPU, and on xpu where torch has it."""

import types
from dataclasses import replace

import pytest
import torch
from cover import few
from tolerance import check_attention
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata
from vllm.v1.kv_cache_interface import FullAttentionSpec
from xeflash.integrations.vllm_backend import XeflashBackend
from xeflash.selftest.attention.nibbles import unpacked
from xeflash.selftest.reference import Features

PAGES, PAGE, HEADS, HEADS_K, DIM = 12, 16, 6, 2, 64
# The others run on xpu in the wide set: a simulated GPU takes seconds for a kernel.
GPU_TESTS = ("step", "window", "sinks", "fp8", "slots", "encoder")


def new_cache(dim=DIM):
    """As vLLM's runner makes it: (pages, heads, page, 2 D), here with the heads of a token beside each other."""
    return torch.full((PAGES, PAGE, HEADS_K, 2 * dim), torch.nan, dtype=torch.bfloat16).transpose(1, 2)


def keys_and_values(cache):
    """Views (slots, heads, D)."""
    return cache.transpose(1, 2).flatten(0, 1).chunk(2, -1)


def config(ranks=1):
    """What the builder asks of vLLM's."""
    parallel = types.SimpleNamespace(decode_context_parallel_size=ranks)
    return types.SimpleNamespace(parallel_config=parallel, model_config=types.SimpleNamespace(max_model_len=3 * PAGE))


class Sequences:
    """Sequences with keys in a cache already, and the tokens that a step adds."""

    def __init__(self, before, new, device="cpu", padding=3, dim=DIM):
        with torch.device("cpu"):
            self.draw(before, new, padding, dim)
        for name in ("q", "k", "v", "cache"):
            setattr(self, name, getattr(self, name).to(device))
        for name in ("query_start_loc", "seq_lens", "block_table_tensor", "slot_mapping"):
            setattr(self.common, name, getattr(self.common, name).to(device))

    def draw(self, before, new, padding, dim):
        self.lengths = [a + b for a, b in zip(before, new, strict=True)]
        self.tokens = sum(new)
        self.table = torch.randperm(PAGES)[: 3 * len(new)].view(len(new), 3).int()
        self.q = torch.randn(self.tokens + padding, HEADS, dim).bfloat16()
        self.k, self.v = torch.randn(2, self.tokens + padding, HEADS_K, dim).bfloat16()
        self.cache = new_cache(dim)
        slots, starts, self.keys = [], [0], []
        for b, (n, more) in enumerate(zip(before, new, strict=True)):
            places = torch.tensor([int(self.table[b, i // PAGE]) * PAGE + i % PAGE for i in range(n + more)])
            old = torch.randn(2, n, HEADS_K, dim).bfloat16()
            for rows, cache in zip(old, keys_and_values(self.cache), strict=True):
                cache[places[:n]] = rows
            mine = slice(starts[-1], starts[-1] + more)
            self.keys.append([torch.cat(x) for x in zip(old, (self.k[mine], self.v[mine]), strict=True)])
            slots.append(places[n:])
            starts.append(starts[-1] + more)
        self.starts = starts
        query_starts = torch.tensor(starts, dtype=torch.int32)
        self.common = CommonAttentionMetadata(
            query_start_loc=query_starts,
            query_start_loc_cpu=query_starts.cpu(),
            seq_lens=torch.tensor(self.lengths, dtype=torch.int32),
            num_reqs=len(new),
            num_actual_tokens=self.tokens,
            max_query_len=max(new),
            max_seq_len=max(self.lengths),
            block_table_tensor=self.table,
            slot_mapping=torch.cat(slots),
        )

    def builder(self):
        return XeflashBackend.get_builder_cls()(None, [], config(), self.q.device)

    def metadata(self):
        return self.builder().build(0, self.common)

    def check(self, output, features):
        for b, (k, v) in enumerate(self.keys):
            rows = slice(self.starts[b], self.starts[b + 1])
            q, k, v, out = (x.cpu().transpose(0, 1)[None] for x in (self.q[rows], k, v, output[rows]))
            with torch.device("cpu"):
                check_attention(f"sequence {b}", q, k, v, features, out)


def step(s, layer=None, **features):
    impl = XeflashBackend.get_impl_cls()(HEADS, s.q.shape[-1], 0.125, HEADS_K, **features)
    output = torch.full_like(s.q, torch.nan)
    impl.do_kv_cache_update(layer, s.k, s.v, s.cache, s.common.slot_mapping)
    assert impl.forward(layer, s.q, s.k, s.v, s.cache, s.metadata(), output) is output
    assert output[s.tokens :].isnan().all()  # padding
    return output


CAUSAL = Features(scale=0.125, window=(-1, 0))
MIXED = ((0, 30, 20), (12, 1, 5))  # a prefill, a decode, the next chunk of a prefill


@pytest.mark.parametrize("batch", [MIXED, ((17, 0, 33), (1, 1, 1)), ((0,), (40,))], ids=["mixed", "decode", "prefill"])
def test_step_matches_reference(batch, device):
    s = Sequences(*batch, device)
    s.check(step(s), CAUSAL)


@pytest.mark.parametrize(
    "feature", ["window", *(pytest.param(name, marks=pytest.mark.wide) for name in ("softcap", "alibi")), "sinks"]
)
def test_features_of_a_layer(feature, device):
    s = Sequences(*MIXED, device)
    sinks = torch.arange(HEADS, device="cpu").float()
    given, want = {
        "window": (dict(sliding_window=9), dict(window=(8, 0))),
        "softcap": (dict(logits_soft_cap=3.0), dict(softcap=3.0)),
        "alibi": (dict(alibi_slopes=[0.1 * i for i in range(HEADS)]), dict(alibi=sinks * 0.1)),
        "sinks": (dict(sinks=sinks.to(device)), dict(sinks=sinks)),
    }[feature]
    s.check(step(s, **given), CAUSAL.with_(**want))


@pytest.mark.parametrize(
    "name, dtype", [("fp8", torch.float8_e4m3fn), pytest.param("fp8_e5m2", torch.float8_e5m2, marks=pytest.mark.wide)]
)
def test_cache_in_eight_bits(name, dtype, device):
    s = Sequences(*MIXED, device)
    layer = types.SimpleNamespace(_k_scale_float=0.5, _v_scale_float=0.25)
    scales = torch.tensor([0.5, 0.25], device="cpu").repeat_interleave(DIM)
    s.cache = (s.cache.cpu() / scales).to(dtype).view(torch.uint8).to(device)
    output = step(s, layer, kv_cache_dtype=name)
    s.keys = [
        [((x / scale).to(dtype).float() * scale).bfloat16() for x, scale in zip(kv, (0.5, 0.25), strict=True)]
        for kv in s.keys
    ]
    s.check(output, CAUSAL)


K8V4, INT8, FP8 = "turboquant_k8v4", "int8_per_token_head", "fp8_per_token_head"
PARTS = {name: (128, 128, 4, 4) for name in (INT8, FP8)} | {K8V4: (128, 64, 4, 4)}  # bytes of a token, D 128


def bytes_of_a_token(name):
    spec = FullAttentionSpec(block_size=PAGE, num_kv_heads=HEADS_K, head_size=128, dtype=torch.uint8)
    assert XeflashBackend.customize_spec(spec).state_content_bytes is None
    packed = replace(spec, kv_quant_mode=type(spec.kv_quant_mode)[name.upper()])
    return XeflashBackend.customize_spec(packed).state_content_bytes


def numbers(name, rows, scales):
    """What rows of a cache and their scales, as bytes, stand for."""
    if rows.shape[-1] < 128:
        return torch.from_numpy(unpacked(rows.numpy(), scales.view(torch.float16).numpy()))
    dtype = torch.float8_e4m3fn if name == FP8 else torch.int8
    return rows.view(dtype).double() * scales.view(torch.float32)


@pytest.mark.skipif(not hasattr(XeflashBackend.__base__, "customize_spec"), reason="vLLM has no room for scales")
@pytest.mark.parametrize("layout", ["heads beside each other", "tokens beside each other"])
@pytest.mark.parametrize("name", few((K8V4, INT8, FP8), K8V4))
def test_cache_with_scales_of_tokens(name, layout, device):
    s, size, parts = Sequences(*MIXED, device, dim=128), bytes_of_a_token(name), PARTS[name]
    assert sum(parts) <= size < sum(parts) + 16
    shape = (PAGES, PAGE, HEADS_K, size) if layout[0] == "h" else (PAGES, HEADS_K, PAGE, size)
    cache = torch.full(shape, 255, dtype=torch.uint8, device=device)  # scales are NaN
    s.cache = cache.transpose(1, 2) if layout[0] == "h" else cache
    impl = XeflashBackend.get_impl_cls()(HEADS, 128, 0.125, HEADS_K, kv_cache_dtype=name)
    places = [
        torch.tensor([int(row[i // PAGE]) * PAGE + i % PAGE for i in range(n)], device="cpu")
        for row, n in zip(s.table, s.lengths, strict=True)
    ]
    for (k, v), slots, more in zip(s.keys, places, s.common.query_start_loc.diff(), strict=True):
        old = len(slots) - int(more)
        impl.do_kv_cache_update(None, k[:old].to(device), v[:old].to(device), s.cache, slots[:old].to(device))
    output = step(s, kv_cache_dtype=name)
    tokens = s.cache.cpu().transpose(1, 2).flatten(0, 1)[..., : sum(parts)]
    k, v, *scales = (part.contiguous() for part in tokens.split(parts, -1))
    held, kept = [numbers(name, *x) for x in ((k, scales[0]), (v, scales[1]))], []
    halves = {K8V4: (127, 4), INT8: (127, 127), FP8: (14, 14)}[
        name
    ]  # of a step, in the largest; V may be cut at 7 of 8
    for exact, slots in zip(s.keys, places, strict=True):
        kept.append([x[slots] for x in held])
        for got, want, steps in zip(kept[-1], exact, halves, strict=True):
            assert ((got - want).abs() <= want.double().abs().amax(-1, keepdim=True) / steps / 1.99).all()
    s.keys = kept
    s.check(output, CAUSAL)
    assert (tokens == 255).all(-1).all(-1).sum() == PAGES * PAGE - sum(s.lengths)


def test_layers_that_cannot_have_values_in_four_bits():
    layer = {"block_size": 16, "use_mla": False, "has_sink": False, "use_sparse": False, "use_mm_prefix": False,
             "device_capability": None}  # fmt: skip
    for head_size, dtype in ((96, torch.bfloat16), (64, torch.float32)):
        assert "multiple of 64" in XeflashBackend.supports_combination(head_size, dtype, K8V4, **layer)
        assert XeflashBackend.supports_combination(head_size, dtype, "fp8", **layer) is None
    assert XeflashBackend.supports_combination(64, torch.bfloat16, K8V4, **layer) is None


def test_slots_that_are_written_are_those_of_the_mapping(device):
    s = Sequences(*MIXED, device)
    before = s.cache.cpu()
    step(s)
    slots = s.common.slot_mapping.cpu()
    others = torch.ones(PAGES * PAGE, dtype=torch.bool, device="cpu").index_fill(0, slots, False)
    caches = zip((s.k, s.v), keys_and_values(s.cache.cpu()), keys_and_values(before), strict=True)
    for new, cache, old in caches:
        assert torch.equal(cache[slots], new[: s.tokens].cpu())
        assert torch.equal(cache[others].nan_to_num(7), old[others].nan_to_num(7))


def test_encoder_uses_no_cache(device):
    s = Sequences((0, 0), (12, 5), device)
    s.cache = new_cache().to(device)
    s.check(step(s, attn_type="encoder_only", sliding_window=4), Features(scale=0.125, window=(3, 3)))
    assert s.cache.isnan().all()


@pytest.mark.xpu
@pytest.mark.parametrize("new", [1, 3], ids=["tokens", "guesses"])
def test_a_step_that_is_recorded_on_xpu_serves_others(new, xpu):
    """As vLLM records it: of short sequences. Replays have longer ones, and fewer, whose places are empty at the end."""
    with torch.device("xpu"):
        first = Sequences((2, 0, 1, 2), (new,) * 4, "xpu", padding=0)
        spec = FullAttentionSpec(block_size=PAGE, num_kv_heads=HEADS_K, head_size=DIM, dtype=torch.bfloat16)
        assert first.builder().get_cudagraph_support(config(), spec) is AttentionCGSupport.UNIFORM_BATCH
        assert first.builder().get_cudagraph_support(config(ranks=2), spec) is AttentionCGSupport.NEVER
        m = first.builder().build_for_cudagraph_capture(first.common)
        impl = XeflashBackend.get_impl_cls()(HEADS, DIM, 0.125, HEADS_K)
        output = torch.empty_like(first.q)

        def forward():
            impl.forward(None, first.q, first.k, first.v, first.cache, m, output)

        forward()  # compiles
        torch.xpu.synchronize()
        graph = torch.xpu.XPUGraph()
        with torch.xpu.graph(graph):
            forward()
        for before in ((17, 45 - new, 0, 5), (40, 1, 20), (3, 30, 12, 44 - new)):
            s, n = Sequences(before, (new,) * len(before), "xpu", padding=0), len(before)
            impl.do_kv_cache_update(None, s.k, s.v, s.cache, s.common.slot_mapping)
            first.cache.copy_(s.cache)
            first.q[: s.tokens].copy_(s.q)
            for name, rest in (("seq_lens", 0), ("block_table_tensor", 0), ("query_start_loc", s.tokens)):
                there, now = getattr(first.common, name), getattr(s.common, name)
                there.fill_(rest)[: len(now)].copy_(now)
            output.fill_(torch.nan)
            graph.replay()
            s.check(output, CAUSAL)
            assert output[s.tokens :].isnan().all() and len(m.seq_lens) == 4 >= n
        graph.reset()


def test_profiling_run_and_refusals():
    s = Sequences(*MIXED)
    impl = XeflashBackend.get_impl_cls()(HEADS, DIM, 0.125, HEADS_K)
    assert not impl.forward(None, s.q, s.k, s.v, s.cache, None, torch.empty_like(s.q)).any()
    with pytest.raises(NotImplementedError, match="output_scale must be None"):
        impl.forward(None, s.q, s.k, s.v, s.cache, None, s.q, output_scale=s.q)
    with pytest.raises(NotImplementedError, match="kv_cache_dtype must be one of .*, got 'nvfp4'"):
        XeflashBackend.get_impl_cls()(HEADS, DIM, 0.125, HEADS_K, kv_cache_dtype="nvfp4")
    s.common.causal = torch.ones(3, dtype=torch.bool)
    with pytest.raises(NotImplementedError, match="causal must be the same for all sequences of a step"):
        s.metadata()
