"""vLLM's backend against stand-ins of the classes it builds on: its plugin, its cache, a step's mixed batch."""

import enum
import importlib
import sys
import types
from pathlib import Path

import pytest
import torch
from tolerance import check_attention
from xeflash.integrations import vllm as plugin
from xeflash.selftest.reference import Features

PAGES, PAGE, HEADS, HEADS_K, DIM = 12, 16, 6, 2, 64


class AttentionBackendEnum(enum.Enum):
    FLASH_ATTN = "vllm.flash"
    CUSTOM = ""


@pytest.fixture
def registered(monkeypatch):
    """A vLLM of stand-ins; what is registered in it."""
    paths = {}
    names = ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backend", "vllm.v1.attention.backends")
    modules = {name: types.ModuleType(name) for name in (*names, "vllm.v1.attention.backends.registry")}
    base = modules["vllm.v1.attention.backend"]
    for name in ("AttentionBackend", "AttentionImpl", "AttentionMetadataBuilder"):
        setattr(base, name, type(name, (), {}))
    base.AttentionType = types.SimpleNamespace(
        DECODER="decoder", ENCODER="encoder", ENCODER_ONLY="encoder_only", ENCODER_DECODER="encoder_decoder"
    )
    base.AttentionCGSupport = types.SimpleNamespace(NEVER="never")
    base.MultipleOf = lambda n: ("multiple of", n)
    registry = modules["vllm.v1.attention.backends.registry"]
    registry.AttentionBackendEnum = AttentionBackendEnum
    registry.register_backend = lambda place, path: paths.update({place.name: path})
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "xeflash.integrations.vllm_backend", raising=False)
    yield paths
    sys.modules.pop("xeflash.integrations.vllm_backend", None)


@pytest.fixture
def backend(registered):
    plugin.register()
    module, _, name = registered["CUSTOM"].rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_the_entry_point_is_the_plugin():
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["vllm.general_plugins"] == {"xeflash": "xeflash.integrations.vllm:register"}
    assert callable(plugin.register)


@pytest.mark.parametrize("choice, places", [(None, ["CUSTOM"]), ("0", ["CUSTOM"]), ("1", ["CUSTOM", "FLASH_ATTN"])])
def test_it_takes_the_place_of_flash_attn_only_when_asked(registered, monkeypatch, choice, places):
    monkeypatch.delenv("XEFLASH_VLLM", raising=False)
    if choice:
        monkeypatch.setenv("XEFLASH_VLLM", choice)
    plugin.register()
    assert list(registered) == places and set(registered.values()) == {plugin.BACKEND}
    assert "xeflash.integrations.vllm_backend" not in sys.modules  # imported when it is chosen
    backend = importlib.import_module("xeflash.integrations.vllm_backend").XeflashBackend
    assert backend.get_name() == places[-1]
    monkeypatch.setenv("XEFLASH_VLLM", "yes")
    with pytest.raises(ValueError, match="XEFLASH_VLLM: must be 0 or 1, got 'yes'"):
        plugin.register()


def test_what_it_says_of_itself(backend):
    shape = backend.get_kv_cache_shape(PAGES, PAGE, HEADS_K, DIM)
    assert shape == (2, PAGES, PAGE, HEADS_K, DIM)
    assert sorted(backend.get_kv_cache_stride_order()) == list(range(5))
    assert sorted(backend.get_kv_cache_stride_order(True)) == list(range(6))
    with pytest.raises(ValueError, match="multiple of 16, got 24"):
        backend.get_kv_cache_shape(PAGES, 24, HEADS_K, DIM)
    assert backend.supports_head_size(576) and not backend.supports_head_size(100)
    assert backend.supports_kv_cache_dtype("fp8") and not backend.supports_kv_cache_dtype("nvfp4")


class Sequences:
    """Sequences with keys in a cache already, and the tokens that a step adds."""

    def __init__(self, before, new, padding=3):
        self.before, self.new = before, new
        self.lengths = [a + b for a, b in zip(before, new, strict=True)]
        self.tokens = sum(new)
        self.table = torch.randperm(PAGES)[: 3 * len(new)].view(len(new), 3).int()
        self.q = torch.randn(self.tokens + padding, HEADS, DIM, dtype=torch.bfloat16)
        self.k, self.v = torch.randn(2, self.tokens + padding, HEADS_K, DIM, dtype=torch.bfloat16)
        self.kv_cache = torch.full((2, PAGES, PAGE, HEADS_K, DIM), torch.nan, dtype=torch.bfloat16)
        slots, starts, self.keys = [], [0], []
        for b, (n, more) in enumerate(zip(before, new, strict=True)):
            places = torch.tensor([int(self.table[b, i // PAGE]) * PAGE + i % PAGE for i in range(n + more)])
            old = torch.randn(2, n, HEADS_K, DIM).bfloat16()
            self.kv_cache.flatten(1, 2)[:, places[:n]] = old
            mine = slice(starts[-1], starts[-1] + more)
            self.keys.append([torch.cat(x) for x in zip(old, (self.k[mine], self.v[mine]), strict=True)])
            slots.append(places[n:])
            starts.append(starts[-1] + more)
        self.starts = starts
        self.common = types.SimpleNamespace(
            num_reqs=len(new),
            num_actual_tokens=self.tokens,
            max_query_len=max(new),
            max_seq_len=max(self.lengths),
            query_start_loc=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor(self.lengths, dtype=torch.int32),
            block_table_tensor=self.table,
            slot_mapping=torch.cat(slots),
            causal=True,
        )

    def check(self, output, features):
        for b, (k, v) in enumerate(self.keys):
            rows = slice(self.starts[b], self.starts[b + 1])
            q, k, v, out = (x.transpose(0, 1)[None] for x in (self.q[rows], k, v, output[rows]))
            check_attention(f"sequence {b}", q, k, v, features, out)


def step(backend, s, **features):
    impl = backend.get_impl_cls()(HEADS, DIM, 0.125, HEADS_K, **features)
    metadata = backend.get_builder_cls()().build(0, s.common)
    output = torch.full_like(s.q, torch.nan)
    impl.do_kv_cache_update(None, s.k, s.v, s.kv_cache, s.common.slot_mapping)
    assert impl.forward(None, s.q, s.k, s.v, s.kv_cache, metadata, output) is output
    assert output[s.tokens :].isnan().all()  # padding
    return output


MIXED = ((0, 30, 20), (12, 1, 5))  # a prefill, a decode, the next chunk of a prefill


@pytest.mark.parametrize("batch", [MIXED, ((17, 0, 33), (1, 1, 1)), ((0,), (40,))], ids=["mixed", "decode", "prefill"])
def test_step_matches_reference(backend, batch):
    s = Sequences(*batch)
    s.check(step(backend, s), Features(scale=0.125, window=(-1, 0)))


@pytest.mark.parametrize("feature", ["window", "softcap", "alibi", "sinks"])
def test_features_of_a_layer(backend, feature):
    s = Sequences(*MIXED)
    given, want = {
        "window": (dict(sliding_window=9), dict(window=(8, 0))),
        "softcap": (dict(logits_soft_cap=3.0), dict(softcap=3.0)),
        "alibi": (dict(alibi_slopes=[0.1 * i for i in range(HEADS)]), dict(alibi=torch.arange(HEADS) * 0.1)),
        "sinks": (dict(sinks=torch.arange(HEADS).float()), dict(sinks=torch.arange(HEADS).float())),
    }[feature]
    s.check(step(backend, s, **given), Features(scale=0.125, window=(-1, 0)).with_(**want))


@pytest.mark.parametrize("name, dtype", [("fp8", torch.float8_e4m3fn), ("fp8_e5m2", torch.float8_e5m2)])
def test_cache_in_eight_bits(backend, name, dtype):
    s = Sequences(*MIXED)
    layer = types.SimpleNamespace(_k_scale_float=0.5, _v_scale_float=0.25)
    scales = torch.tensor([0.5, 0.25])
    s.kv_cache = (s.kv_cache / scales[:, None, None, None, None]).to(dtype).view(torch.uint8)
    impl = backend.get_impl_cls()(HEADS, DIM, 0.125, HEADS_K, kv_cache_dtype=name)
    output = torch.full_like(s.q, torch.nan)
    impl.do_kv_cache_update(layer, s.k, s.v, s.kv_cache, s.common.slot_mapping)
    impl.forward(layer, s.q, s.k, s.v, s.kv_cache, backend.get_builder_cls()().build(0, s.common), output)
    s.keys = [
        [((x / scale).to(dtype).float() * scale).bfloat16() for x, scale in zip(kv, scales, strict=True)]
        for kv in s.keys
    ]
    s.check(output, Features(scale=0.125, window=(-1, 0)))


def test_slots_that_are_written_are_those_of_the_mapping(backend):
    s = Sequences(*MIXED)
    before = s.kv_cache.clone()
    step(backend, s)
    for new, cache, old in zip((s.k, s.v), s.kv_cache.flatten(1, 2), before.flatten(1, 2), strict=True):
        assert torch.equal(cache[s.common.slot_mapping], new[: s.tokens])
        others = torch.ones(PAGES * PAGE, dtype=torch.bool)
        others[s.common.slot_mapping] = False
        assert torch.equal(cache[others].nan_to_num(7), old[others].nan_to_num(7))


def test_encoder_uses_no_cache(backend):
    s = Sequences((0, 0), (12, 5))
    impl = backend.get_impl_cls()(HEADS, DIM, 0.125, HEADS_K, attn_type="encoder_only", sliding_window=4)
    metadata = backend.get_builder_cls()().build(0, s.common)
    cache, output = s.kv_cache.clone(), torch.empty_like(s.q)
    impl.do_kv_cache_update(None, s.k, s.v, s.kv_cache, s.common.slot_mapping)
    impl.forward(None, s.q, s.k, s.v, None, metadata, output)
    s.check(output, Features(scale=0.125, window=(3, 3)))
    assert torch.equal(cache.isnan(), s.kv_cache.isnan())


def test_profiling_run_and_refusals(backend):
    s = Sequences(*MIXED)
    impl = backend.get_impl_cls()(HEADS, DIM, 0.125, HEADS_K)
    assert not impl.forward(None, s.q, s.k, s.v, s.kv_cache, None, torch.empty_like(s.q)).any()
    with pytest.raises(NotImplementedError, match="output_scale must be None"):
        impl.forward(None, s.q, s.k, s.v, s.kv_cache, None, s.q, output_scale=s.q)
    with pytest.raises(NotImplementedError, match="kv_cache_dtype must be one of .*, got 'nvfp4'"):
        backend.get_impl_cls()(HEADS, DIM, 0.125, HEADS_K, kv_cache_dtype="nvfp4")
