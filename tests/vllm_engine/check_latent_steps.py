"""A step of latent attention by vLLM's own builder and layer, without an engine: on the CPU, and on xpu where torch has it."""

import types

import pytest
import torch
from cover import few
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.attention.mla_attention import MLAAttention
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum
from xeflash.integrations.vllm_mla import XeflashMLABackend
from xeflash.selftest.tolerance import limits_of_math

pytestmark = pytest.mark.skipif("CPU" not in MLAPrefillBackendEnum.__members__, reason="vLLM before 0.29 is refused")

PAGES, PAGE, HEADS, PER_SEQUENCE = 24, 16, 4, 6
LONGEST = PER_SEQUENCE * PAGE
LATENT, ROTATED, PLAIN, VALUES = 512, 64, 128, 128
SCALE = (PLAIN + ROTATED) ** -0.5
# The others run on xpu in the wide set: a simulated GPU takes seconds for a kernel.
GPU_TESTS = ("fp32", "pieces", "lse", "recorded")


class Step:
    """Sequences with latents in a cache already, and the tokens that a step adds; decoding ones first, as vLLM has them."""

    def __init__(self, before, new, device, dtype=torch.float32, cache_dtype="auto", rows=2048, guesses=0):
        with torch.device("cpu"):
            self.draw(before, new, dtype)
        self.device, self.cache_dtype, self.rows, self.guesses = device, cache_dtype, rows, guesses
        self.scale = 0.5 if cache_dtype == "fp8" else 1.0
        pages = self.cache / self.scale
        there = pages.to(torch.float8_e4m3fn).view(torch.uint8) if cache_dtype == "fp8" else pages
        self.pages = there.to(device)
        self.layer()

    def draw(self, before, new, dtype):
        torch.manual_seed(3)
        self.dtype, self.lengths, self.tokens = dtype, [a + b for a, b in zip(before, new, strict=True)], sum(new)
        self.new = new
        self.q = torch.randn(self.tokens, HEADS, PLAIN + ROTATED).to(dtype)
        self.latents, self.rotated = torch.randn(self.tokens, LATENT).to(dtype), torch.randn(self.tokens, 1, ROTATED)
        self.rotated = self.rotated.to(dtype)
        self.weight = (torch.randn(HEADS * (PLAIN + VALUES), LATENT) / LATENT**0.5).to(dtype)
        self.table = torch.randperm(PAGES)[: PER_SEQUENCE * len(new)].view(len(new), PER_SEQUENCE).int()
        self.cache = torch.full((PAGES, PAGE, LATENT + ROTATED), 0.0, dtype=dtype)
        self.starts, slots, self.old = [0], [], []
        for b, (n, more) in enumerate(zip(before, new, strict=True)):
            places = [int(self.table[b, i // PAGE]) * PAGE + i % PAGE for i in range(n + more)]
            self.old.append(torch.randn(n, LATENT + ROTATED).to(dtype))
            self.cache.view(-1, LATENT + ROTATED)[places[:n]] = self.old[-1]
            slots += places[n:]
            self.starts.append(self.starts[-1] + more)
        self.slots = torch.tensor(slots)

    def layer(self):
        """vLLM's, of which only what a step asks for is there."""
        to = self.device
        weight = self.weight.to(to)
        key_weight, value_weight = weight.T.view(LATENT, HEADS, PLAIN + VALUES).split((PLAIN, VALUES), -1)
        dims = {"q_lora_rank": None, "kv_lora_rank": LATENT, "qk_nope_head_dim": PLAIN, "qk_rope_head_dim": ROTATED}
        dims["v_head_dim"] = VALUES
        with set_current_vllm_config(VllmConfig()):
            self.impl = XeflashMLABackend.get_impl_cls()(
                HEADS, LATENT + ROTATED, SCALE, 1, None, None, self.cache_dtype, None, "decoder", None, **dims,
                qk_head_dim=PLAIN + ROTATED, kv_b_proj=lambda x: (x @ weight.T, None),
            )  # fmt: skip
        scale = torch.tensor(self.scale, device=to)
        self.attention = types.SimpleNamespace(
            **dims, num_heads=HEADS, impl=self.impl, kv_cache_dtype=self.cache_dtype, use_pcp=False, prefill_backend=None,
            q_pad_num_heads=None, is_aiter_triton_fp4_bmm_enabled=False, is_aiter_triton_fp8_bmm_enabled=False,
            is_amx_bmm_enabled=False, W_UK_T=key_weight.permute(1, 2, 0), W_UV=value_weight.transpose(0, 1), hisparse_cache=None,
            _k_scale=scale, _k_scale_float=self.scale, chunked_prefill_workspace_size=self.rows,
        )  # fmt: skip
        self.attention._v_up_proj = lambda x, out: MLAAttention._v_up_proj(self.attention, x, out)

    def metadata(self, recorded=False):
        """By vLLM's builder, of a configuration that says what it asks; recorded: for a graph."""
        of = types.SimpleNamespace
        prefill = of(prepare_metadata=lambda metadata: None)
        layer = of(**vars(self.attention) | {"prefill_backend": of(clone=lambda: prefill)})
        parallel = of(
            decode_context_parallel_size=1, prefill_context_parallel_size=1, cp_kv_cache_interleave_size=1,
        )  # fmt: skip
        guess = of(method="ngram", num_speculative_tokens=self.guesses, parallel_drafting=False)
        config = of(
            model_config=of(
                dtype=self.dtype, max_model_len=LONGEST, get_num_attention_heads=lambda parallel: HEADS,
                get_head_size=lambda: LATENT + ROTATED,
            ),
            parallel_config=parallel, compilation_config=of(static_forward_context={"layer": layer}),
            cache_config=of(cache_dtype=self.cache_dtype, block_size=PAGE), use_v2_model_runner=False,
            scheduler_config=of(max_num_seqs=8), attention_config=of(use_prefill_query_quantization=False),
            speculative_config=guess if self.guesses else None,
        )  # fmt: skip
        builder = type("Builder", (XeflashMLABackend.get_builder_cls(),), {
            "determine_chunked_prefill_workspace_size": staticmethod(lambda config: self.rows)
        })  # fmt: skip
        starts, lengths = torch.tensor(self.starts).int().cpu(), torch.tensor(self.lengths).int().cpu()
        common = CommonAttentionMetadata(
            query_start_loc=starts.to(self.device), query_start_loc_cpu=starts, seq_lens=lengths.to(self.device),
            seq_lens_cpu_upper_bound=lengths, num_reqs=len(self.new), num_actual_tokens=self.tokens,
            max_query_len=max(self.new), max_seq_len=max(self.lengths), block_table_tensor=self.table.to(self.device),
            slot_mapping=self.slots.to(self.device),
        )  # fmt: skip
        with torch.device("cpu"):  # lengths of the host
            made = builder(of(block_size=PAGE), ["layer"], config, torch.device(self.device))
            return made.build_for_cudagraph_capture(common) if recorded else made.build(0, common)

    def run(self):
        """The layer's output (tokens and padding, H Dv), and the metadata."""
        m, pad = self.metadata(), 3
        q, latents, rotated = (
            torch.cat((x, x.new_full((pad, *x.shape[1:]), torch.nan))).to(self.device)
            for x in (self.q, self.latents, self.rotated)
        )
        slots = torch.cat((self.slots, self.slots.new_full((pad,), -1)))
        self.impl.do_kv_cache_update(
            latents, rotated, self.pages, slots.to(self.device), self.cache_dtype, self.attention._k_scale
        )
        output = torch.full((self.tokens + pad, HEADS * VALUES), torch.nan, dtype=self.dtype, device=self.device)
        MLAAttention.forward_impl(self.attention, q, latents, rotated, self.pages, m, output)
        assert output[self.tokens :].isnan().all()
        return output[: self.tokens].view(-1, HEADS, VALUES), m

    def rounded(self, x):
        """What a cache makes of rows."""
        return ((x / self.scale).to(torch.float8_e4m3fn).float() * self.scale) if self.cache_dtype == "fp8" else x

    def attend(self, b, rows, dtype, absorbed):
        """Of a sequence's queries on rows of latents, in a dtype; absorbed: queries go to the latents, not they to heads."""
        q, weight, rows = (x.to(dtype) for x in (self.q[self.starts[b] : self.starts[b + 1]], self.weight, rows))
        latents, rotated = rows.split((LATENT, ROTATED), -1)
        key_weight, value_weight = weight.view(HEADS, PLAIN + VALUES, LATENT).split((PLAIN, VALUES), 1)
        if absorbed:
            q = torch.cat((torch.einsum("qhd,hdl->qhl", q[..., :PLAIN], key_weight), q[..., PLAIN:]), -1)
            k, v = (x[:, None].expand(-1, HEADS, -1) for x in (rows, latents))
        else:
            plain, v = (torch.einsum("kl,hdl->khd", latents, x) for x in (key_weight, value_weight))
            k = torch.cat((plain, rotated[:, None].expand(-1, HEADS, -1)), -1)
        hidden = torch.ones(len(q), len(rows), dtype=torch.bool, device="cpu").triu(len(rows) - len(q) + 1)
        scores = (torch.einsum("qhd,khd->hqk", q, k) * SCALE).masked_fill(hidden, -torch.inf)
        out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
        return torch.einsum("qhl,hdl->qhd", out, value_weight) if absorbed else out

    def check(self, out, decodes):
        """Errors are at most twice torch's in the same dtype, what a GPU's exp2 adds, and the rounding of the result."""
        for b in range(len(self.new)):
            rows = slice(self.starts[b], self.starts[b + 1])
            mine = torch.cat((self.latents[rows], self.rotated[rows, 0]), -1)
            there = torch.cat((self.rounded(self.old[b]), self.rounded(mine) if b < decodes else mine))
            want = self.attend(b, there, torch.float64, False)
            torchs = (self.attend(b, there.to(self.dtype), self.dtype, b < decodes) - want).abs().max()
            largest = float(want.abs().max())
            math = limits_of_math(0.0, largest, len(there))[0] if self.device == "xpu" else 0.0
            limit = 2 * torchs + math + torch.finfo(self.dtype).eps * largest
            error = (out[rows].cpu().double() - want).abs().max()
            assert error <= limit, f"sequence {b}: {error:.2e}, at most {limit:.2e}"


MIXED = ((17, 40, 0, 37), (1, 1, 12, 20))  # two that decode, a prompt, a later chunk of another


TOKENS = ((17, 0, 33), (1, 1, 1))


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.wide)], ids=["fp32", "bf16"]
)
@pytest.mark.parametrize("batch", [MIXED, TOKENS, ((0,), (40,))], ids=["mixed", "decode", "prefill"])
def test_step_matches_reference(batch, dtype, device):
    s = Step(*batch, device, dtype)
    out, m = s.run()
    assert (m.num_decodes, m.num_prefills) == (batch[1].count(1), len(batch[1]) - batch[1].count(1))
    s.check(out, m.num_decodes)


def test_earlier_keys_in_pieces(device):
    """Of 32 rows: a sequence takes several, a piece has rows of two."""
    s = Step((40, 0, 72, 10), (5, 3, 4, 7), device, rows=32)
    out, m = s.run()
    pieces = [(p.num_requests, p.is_continuation) for p in m.prefill.chunked_context.chunks]
    assert any(n > 1 for n, _ in pieces) and any(continued for _, continued in pieces)
    s.check(out, 0)


def test_guesses_are_verified_as_decoding(device):
    s = Step((40, 17, 30), (4, 2, 1), device, guesses=3)
    out, m = s.run()
    assert m.num_decodes == 3
    s.check(out, 3)


def test_cache_in_eight_bits(device):
    s = Step(*TOKENS, device, torch.bfloat16, "fp8")
    out, m = s.run()
    s.check(out, m.num_decodes)
    s.cache_dtype = "auto"
    with pytest.raises(AssertionError, match="sequence 0"):  # rounding is seen
        s.check(out, m.num_decodes)


def test_lse_of_tokens(device):
    """In base e, (tokens, H); vLLM's other backends give -inf for a row without keys."""
    s = Step(*TOKENS, device)
    m = s.metadata()
    m.decode.seq_lens = (m.decode.seq_lens - torch.tensor([0, 1, 0]).to(m.decode.seq_lens)).int()
    q = torch.randn(3, HEADS, LATENT + ROTATED, device="cpu")
    out, lse = s.impl.forward_mqa(q.to(device), s.pages, m, s.attention)
    assert lse.shape == (3, HEADS) and lse[1].cpu().eq(-torch.inf).all() and not out[1].any()
    s.cache.view(-1, LATENT + ROTATED)[s.slots[0]] = 0  # the new token's, which is not written here
    keys = torch.cat((s.old[0], torch.zeros(1, LATENT + ROTATED, device="cpu")))
    torch.testing.assert_close(lse[0].cpu(), (q[0] @ keys.T * SCALE).logsumexp(-1), rtol=0, atol=1e-4)


@pytest.mark.xpu
@pytest.mark.parametrize("dtype", few([torch.float32, torch.bfloat16], torch.float32))
def test_a_step_that_is_recorded_on_xpu_serves_others(xpu, dtype):
    """As vLLM records it: of short sequences. Replays have longer ones, and fewer, whose places are empty at the end."""
    first = Step((2, 0, 1, 2), (1,) * 4, "xpu", dtype)
    m = first.metadata(recorded=True)
    assert m.max_seq_len == LONGEST > max(first.lengths)
    q = torch.empty(4, HEADS, LATENT + ROTATED, dtype=dtype, device="xpu")
    first.impl.attend_pages(q, first.pages, m, first.attention)  # compiles
    torch.xpu.synchronize()
    graph = torch.xpu.XPUGraph()
    with torch.xpu.graph(graph):
        out, _ = first.impl.attend_pages(q, first.pages, m, first.attention)
    for before in ((17, 60, 0, 5), (90, 1, 20)):
        s = Step(before, (1,) * len(before), "xpu", dtype)
        now, n = s.metadata(), len(before)
        some = torch.randn(n, HEADS, LATENT + ROTATED).to(dtype).to("xpu")
        want, _ = s.impl.forward_mqa(some, s.pages, now, s.attention)
        q[:n].copy_(some), first.pages.copy_(s.pages), out.fill_(torch.nan)
        places = ((m.decode.seq_lens, now.decode.seq_lens), (m.decode.block_table, now.decode.block_table))
        for there, values in places:
            there.fill_(0)[:n].copy_(values)
        m.query_start_loc.fill_(n)[: n + 1].copy_(now.query_start_loc)
        graph.replay()
        torch.testing.assert_close(out[:n].cpu(), want.cpu(), rtol=0.02, atol=0.02)
    graph.reset()


def test_refusals():
    s = Step(*MIXED, "cpu")
    kind = XeflashMLABackend.get_impl_cls()
    layer = {"q_lora_rank": None, "kv_lora_rank": LATENT, "qk_nope_head_dim": PLAIN, "qk_rope_head_dim": ROTATED}
    layer |= {"v_head_dim": VALUES, "qk_head_dim": PLAIN + ROTATED, "kv_b_proj": None}
    names = ("num_heads", "head_size", "scale", "num_kv_heads", "alibi_slopes", "sliding_window", "kv_cache_dtype")
    given = dict(zip(names, (HEADS, LATENT + ROTATED, SCALE, 1, None, None, "auto"), strict=True))
    given |= {"logits_soft_cap": None, "attn_type": "decoder", "kv_sharing_target_layer_name": None}
    for name, value, message in (
        ("alibi_slopes", [0.5] * HEADS, "alibi_slopes must be None with MLA, got"),
        ("sliding_window", 9, "sliding_window must be None with MLA, got 9"),
        ("logits_soft_cap", 3.0, "logits_soft_cap must be None with MLA, got 3.0"),
        ("attn_type", "encoder", "attn_type must be 'decoder' with MLA, got 'encoder'"),
        ("kv_cache_dtype", "fp8_e5m2", "kv_cache_dtype must be one of .* with MLA, got 'fp8_e5m2'"),
    ):
        with set_current_vllm_config(VllmConfig()), pytest.raises(NotImplementedError, match=message):
            kind(**given | {name: value}, **layer)
    config = VllmConfig()
    config.parallel_config.decode_context_parallel_size = 2
    message = "decode_context_parallel_size must be 1 with MLA, got 2"
    with set_current_vllm_config(config), pytest.raises(NotImplementedError, match=message):
        kind(**given, **layer)
    with pytest.raises(NotImplementedError, match="output_scale must be None"):
        s.impl.forward_mha(s.q, s.latents, s.rotated, s.pages, s.metadata(), None, s.q, output_scale=s.q)
