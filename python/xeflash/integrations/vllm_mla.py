"""vLLM's backend for multi-head latent attention (DeepSeek): one head of keys, whose first columns are the values.

    single tokens, guesses    queries times W_UK attend the latent pages: head dims 576 and 512; vLLM then applies W_UV
    chunks of prompts         latents times kv_b_proj become keys and values of all heads: head dims 192 and 128
    their earlier keys        in pieces that fit vLLM's workspace, likewise, which are merged by the LSE

vLLM's layer splits the tokens of a step so, and multiplies by weights. See vllm.py for how the backend is chosen.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend,
    MLACommonImpl,
    MLACommonMetadataBuilder,
    QueryLenSupport,
)
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType, MultipleOf
from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum

from xeflash import merge_states, write_to_cache
from xeflash.integrations.vllm_backend import XeflashBackend, attend

_FP8 = torch.float8_e4m3fn
_EIGHT_BITS = ("fp8", "fp8_e4m3")  # vLLM's layer takes 8-bit floats of this type, whatever it is told
_CACHE_DTYPES = ["auto", "float16", "bfloat16", *_EIGHT_BITS]


class XeflashMLABackend(MLACommonBackend):  # type: ignore[misc]
    """The properties of xeflash's attention on latents that vLLM asks for before it chooses a backend."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = _CACHE_DTYPES

    @staticmethod
    def get_name() -> str:
        """Returns the name of xeflash's other backend, as vLLM has one name for both."""
        return XeflashBackend.get_name()

    @staticmethod
    def get_impl_cls() -> type[XeflashMLAImpl]:
        """Returns the class of a layer's attention."""
        return XeflashMLAImpl

    @staticmethod
    def get_builder_cls() -> type[XeflashMLAMetadataBuilder]:
        """Returns the class that builds a step's metadata."""
        return XeflashMLAMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        """Returns the sizes that a page may have."""
        return [MultipleOf(16)]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Returns whether there are kernels for this size of latents and rotated columns together."""
        return XeflashBackend.supports_head_size(head_size)

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        """Returns True: compute capabilities are a notion of other devices."""
        return True

    @classmethod
    def validate_configuration(cls, *given: Any, **named: Any) -> list[str]:
        """Returns the reasons why a layer cannot be served; the list is empty if it can."""
        reasons: list[str] = super().validate_configuration(*given, **named)
        if "CPU" not in MLAPrefillBackendEnum.__members__:
            reasons.append("MLA needs vLLM 0.29 or newer")
        return reasons


class XeflashMLAMetadataBuilder(MLACommonMetadataBuilder):  # type: ignore[misc]
    """A builder of vLLM's kind: sequences of few new tokens come first and count as decoding, however many each has."""

    _cudagraph_support: ClassVar[Any] = AttentionCGSupport.UNIFORM_BATCH
    query_len_support: ClassVar[Any] = QueryLenSupport.VARLEN

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> Any:
        """Builds metadata whose launches suit the longest sequence of the model, as a replay may have it."""
        metadata = super().build_for_cudagraph_capture(common_attn_metadata)
        metadata.max_seq_len = self.model_config.max_model_len
        return metadata


class XeflashMLAImpl(MLACommonImpl):  # type: ignore[misc]
    """The attention of a layer."""

    can_return_lse_for_decode: bool = True
    supports_quant_query_input: bool = False

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        **mla: Any,
    ) -> None:
        """Makes a layer's attention with the arguments that vLLM gives."""
        ranks = get_current_vllm_config().parallel_config.decode_context_parallel_size
        refused = (
            ("alibi_slopes", alibi_slopes, None),
            ("sliding_window", sliding_window, None),
            ("logits_soft_cap", logits_soft_cap or None, None),
            ("attn_type", getattr(attn_type, "value", attn_type), AttentionType.DECODER.value),
            ("decode_context_parallel_size", ranks, 1),
        )
        for name, given, allowed in refused:
            if given != allowed:
                raise NotImplementedError(f"xeflash: {name} must be {allowed!r} with MLA, got {given!r}")
        if kv_cache_dtype not in _CACHE_DTYPES:
            raise NotImplementedError(
                f"xeflash: kv_cache_dtype must be one of {_CACHE_DTYPES} with MLA, got {kv_cache_dtype!r}"
            )
        super().__init__(
            num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype, logits_soft_cap,
            attn_type, kv_sharing_target_layer_name, **mla,
        )  # fmt: skip
        self.supports_quant_query_input = False  # vLLM's sets it for each layer

    def do_kv_cache_update(
        self,
        kv_c_normed: Tensor,
        k_pe: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
        kv_cache_dtype: str,
        k_scale: Tensor,
    ) -> None:
        """Writes latents (tokens and padding, L), and rotated columns beside them, to the slots of new tokens."""
        if kv_cache.numel() == 0:  # vLLM measures memory
            return
        latents, rotated = self._pages(kv_cache).split((self.kv_lora_rank, self.qk_rope_head_dim), dim=-1)
        scales = {"k_scale": k_scale, "v_scale": k_scale} if self._in_eight_bits() else {}
        k, v = kv_c_normed[:, None], k_pe.flatten(1)[:, None]
        write_to_cache(k, v, latents, rotated, slot_mapping.flatten(), **scales)

    def forward_mqa(
        self, q: Tensor | tuple[Tensor, Tensor], kv_c_and_k_pe_cache: Tensor, attn_metadata: Any, layer: Any
    ) -> tuple[Tensor, Tensor]:
        """Computes rows (tokens, H, L) of decoding sequences and their LSE (tokens, H): -inf of rows without keys."""
        q = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        out, lse = self.attend_pages(q, kv_c_and_k_pe_cache, attn_metadata, layer)
        return out, lse.masked_fill(lse == torch.inf, -torch.inf).T

    def attend_pages(self, q: Tensor, cache: Tensor, m: Any, layer: Any) -> tuple[Tensor, Tensor]:
        """Computes rows (tokens, H, L) of decoding sequences and their LSE in xeflash's form: (H, tokens), and +inf."""
        keys = self._pages(cache)
        values = keys[..., : self.kv_lora_rank]
        scales = {"k_scale": layer._k_scale_float, "v_scale": layer._k_scale_float} if self._in_eight_bits() else {}
        out, lse = attend(
            q=q, k_cache=keys, v_cache=values, block_table=m.decode.block_table,
            cu_seqlens_q=m.query_start_loc[: m.num_decodes + 1], seqused_k=m.decode.seq_lens,
            max_seqlen_q=min(m.max_query_len, q.shape[0] - m.num_decodes + 1), max_seqlen_k=m.max_seq_len, causal=True,
            softmax_scale=self.scale, return_lse=True, **scales,
        )  # fmt: skip
        return out, lse

    def forward_mha(
        self,
        q: Tensor,
        kv_c_normed: Tensor,
        k_pe: Tensor,
        kv_c_and_k_pe_cache: Tensor,
        attn_metadata: Any,
        k_scale: Tensor,
        output: Tensor,
        output_scale: Tensor | None = None,
    ) -> None:
        """Writes `output` (tokens, H * Dv) of prompts and chunks of them."""
        if output_scale is not None:
            raise NotImplementedError("xeflash: output_scale must be None: outputs are not quantised")
        m = attn_metadata.prefill
        starts, longest = m.query_start_loc, m.max_query_len
        out, lse = self._attend(q, kv_c_normed, k_pe, starts, starts, longest, longest, causal=True)
        for piece in m.chunked_context.chunks if m.chunked_context is not None else ():
            pages = m.block_table[piece.request_slice]
            earlier = self._gather(kv_c_and_k_pe_cache, pages, piece, q.dtype, k_scale)
            latents, rotated = earlier.split((self.kv_lora_rank, self.qk_rope_head_dim), dim=-1)
            rows = piece.token_slice
            part = self._attend(
                q[rows], latents, rotated, piece.query_start_loc, piece.cu_seq_lens, piece.max_query_len,
                piece.max_seq_len, causal=False,
            )  # fmt: skip
            out[rows], lse[:, rows] = merge_states((out[rows], lse[:, rows]), part)
        output.copy_(out.flatten(1))

    def _attend(
        self, q: Tensor, latents: Tensor, rotated: Tensor, starts_q: Tensor, starts_k: Tensor, longest_q: int,
        longest_k: int, *, causal: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Computes (out, LSE) of packed sequences, whose keys and values are made from latents."""
        kv = self.kv_b_proj(latents)[0].view(-1, self.num_heads, self.qk_nope_head_dim + self.v_head_dim)
        plain, v = kv.split((self.qk_nope_head_dim, self.v_head_dim), dim=-1)
        rotated = rotated.reshape(-1, 1, self.qk_rope_head_dim).expand(-1, self.num_heads, -1)
        k = torch.cat((plain, rotated), dim=-1)
        out, lse = attend(
            q=q, k=k, v=v, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k,
            max_seqlen_q=longest_q, max_seqlen_k=longest_k, causal=causal, softmax_scale=self.scale, return_lse=True,
        )  # fmt: skip
        return out, lse

    def _gather(self, cache: Tensor, table: Tensor, piece: Any, dtype: torch.dtype, scale: Tensor) -> Tensor:
        """Gathers the rows (tokens, L + R) of a piece: cu_seq_lens of them for each sequence, from its start on."""
        sequence = piece.token_to_seq
        row = torch.arange(sequence.shape[0], device=sequence.device)
        position = row + (piece.starts - piece.cu_seq_lens[:-1])[sequence]
        pages = self._pages(cache)[:, :, 0]
        if pages.dtype is _FP8:  # torch indexes no 8-bit floats
            pages = pages.view(torch.int8)
        rows = pages[table[sequence, position // pages.shape[1]], position % pages.shape[1]]
        return (rows.view(_FP8).float() * scale).to(dtype) if rows.dtype is torch.int8 else rows

    def _in_eight_bits(self) -> bool:
        return self.kv_cache_dtype in _EIGHT_BITS

    def _pages(self, cache: Tensor) -> Tensor:
        """Returns the cache as (pages, page, 1, L + R); vLLM stores 8-bit floats as bytes."""
        return (cache.view(_FP8) if self._in_eight_bits() else cache).unsqueeze(2)
