"""vLLM's attention backend: new keys and values go to the slots of a paged cache, then packed tokens attend its pages.

Prefill, chunked prefill and decode are one call of variable length. With decode context parallel they are two, of which
the first attends keys that the ranks have dealt among them. See vllm.py for how it is chosen, and what was tested.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.distributed.parallel_state import get_dcp_group
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from xeflash import merge_states, write_to_cache
from xeflash.api.route import run
from xeflash.call.call import Call
from xeflash.call.schema import THD
from xeflash.integrations import _vllm_rows
from xeflash.integrations._vllm_context import local_lengths, longest_local, merge_over_ranks
from xeflash.integrations.vllm import NAME

_EIGHT_BITS = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
_CACHE_DTYPES = ["auto", "float16", "bfloat16", *_EIGHT_BITS]  # the first three: the dtype of the model
if hasattr(AttentionBackend, "customize_spec"):  # else vLLM has no room for scales of tokens
    _CACHE_DTYPES += _vllm_rows.KEYS
_ENCODERS = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)


def attend(**arguments: Any) -> tuple[Tensor, Tensor | None]:
    """Computes (out, LSE or None) of packed sequences, from arguments in the words of the schema."""
    return run(Call({"function": "xeflash", "layout": THD, **arguments}))


class XeflashBackend(AttentionBackend):  # type: ignore[misc]
    """The properties of xeflash's attention that vLLM asks for before it chooses a backend."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = _CACHE_DTYPES
    accept_output_buffer: bool = True
    forward_includes_kv_cache_update: bool = False

    @staticmethod
    def get_name() -> str:
        """Returns the name that vLLM's registry has for this backend."""
        return NAME if NAME in AttentionBackendEnum.__members__ else "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[XeflashImpl]:
        """Returns the class of a layer's attention."""
        return XeflashImpl

    @staticmethod
    def get_builder_cls() -> type[XeflashMetadataBuilder]:
        """Returns the class that builds a step's metadata."""
        return XeflashMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        """Returns the sizes that a page may have; vLLM before 0.31 gives no argument."""
        return [MultipleOf(16)]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        """Returns (pages, Hk, page, 2 D), a value beside its key; vLLM from 0.29 on makes all caches so, unasked."""
        if block_size % 16:
            raise ValueError(f"xeflash: block_size must be a multiple of 16, got {block_size}")
        return num_blocks, num_kv_heads, block_size, 2 * head_size

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        """Returns the order of dimensions in memory; layers in one tensor lie beside each other in a block."""
        return (1, 0, 2, 3, 4) if include_num_layers_dimension else (0, 1, 2, 3)

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """Returns the specification of a layer's cache with the bytes of a token, if each token has scales."""
        name = spec.kv_quant_mode.name.lower()
        if name not in _vllm_rows.KEYS:
            return spec
        return replace(spec, state_content_bytes=_vllm_rows.bytes_of_token(name, spec.head_size))

    @classmethod
    def supports_combination(
        cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: str | None, *more: Any, **named: Any
    ) -> str | None:
        """Returns why a cache with values in 4 bits cannot be had, or None."""
        if kv_cache_dtype != _vllm_rows.K8V4 or not (head_size % _vllm_rows.UNIT or dtype is torch.float32):
            return None
        return f"{kv_cache_dtype} needs 16 bits and a multiple of {_vllm_rows.UNIT} as head_size"

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Returns whether kernels for GPUs can be compiled for this head size."""
        return 0 < head_size <= 576 and head_size % 8 == 0

    @classmethod
    def supports_kv_cache_dtype(cls, kv_cache_dtype: str | None) -> bool:
        """Returns whether a cache may have this type: the model's, or of 8 bits or less with scales."""
        return kv_cache_dtype is None or kv_cache_dtype in _CACHE_DTYPES

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        """Returns whether a type of attention is one of the four known ones."""
        return attn_type in (*_ENCODERS, AttentionType.DECODER, AttentionType.ENCODER_DECODER)

    @classmethod
    def supports_sink(cls) -> bool:
        """Returns True: logits may join the softmax as sinks."""
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Returns True: a window may have any size."""
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        """Returns True: the metadata say whether a step is causal."""
        return True

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        """Returns True: compute capabilities are a notion of other devices."""
        return True


@dataclass
class XeflashMetadata:
    """The tokens of a step, in the words of vLLM's CommonAttentionMetadata."""

    num_actual_tokens: int
    max_query_len: int
    query_start_loc: Tensor
    max_seq_len: int
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    causal: bool = True
    context_lens: Tensor | None = None  # with decode context parallel: the keys before the step that lie on this rank
    max_context_len: int = 0


class XeflashMetadataBuilder(AttentionMetadataBuilder):  # type: ignore[misc]
    """A builder that takes over a step's common metadata."""

    supports_update_block_table: bool = True

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        """Makes a builder for a group of layers whose caches are alike."""
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> Any:
        """Returns which batches can be recorded: those whose sequences have equally many queries.

        A replay reads lengths and tables, which stay in place. With dealt keys a step's lengths are new tensors, and
        for encoders' keys no maximum is known, so neither is recorded.
        """
        dealt = vllm_config.parallel_config.decode_context_parallel_size > 1
        if dealt or not isinstance(kv_cache_spec, FullAttentionSpec | SlidingWindowSpec):
            return AttentionCGSupport.NEVER
        return AttentionCGSupport.UNIFORM_BATCH

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> XeflashMetadata:
        """Builds metadata whose launches suit the longest sequence of the model, as a replay may have it."""
        metadata = self.build(0, common_attn_metadata)
        return replace(metadata, max_seq_len=self.vllm_config.model_config.max_model_len)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> XeflashMetadata:
        """Builds a step's metadata; a common prefix is attended like other keys, as cascades are not used."""
        common = common_attn_metadata
        if isinstance(common.causal, Tensor):
            raise NotImplementedError("xeflash: causal must be the same for all sequences of a step, got a tensor")
        context: dict[str, Any] = {}
        parallel = self.vllm_config.parallel_config
        if parallel.decode_context_parallel_size > 1:  # a draft of one rank may lie in a process of such a group
            group, interleave = get_dcp_group(), parallel.cp_kv_cache_interleave_size
            world, rank = group.world_size, group.rank_in_group
            starts = common.query_start_loc
            before = common.seq_lens - (starts[1:] - starts[:-1])
            context["context_lens"] = local_lengths(before, world, rank, interleave)
            context["max_context_len"] = longest_local(common.max_seq_len, world, interleave)
        return XeflashMetadata(
            num_actual_tokens=common.num_actual_tokens,
            max_query_len=common.max_query_len,
            query_start_loc=common.query_start_loc,
            max_seq_len=common.max_seq_len,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            causal=common.causal,
            **context,
        )

    def update_block_table(self, metadata: XeflashMetadata, blk_table: Tensor, slot_mapping: Tensor) -> XeflashMetadata:
        """Returns the metadata of the same step for another group of layers' pages."""
        return replace(metadata, block_table=blk_table, slot_mapping=slot_mapping)

    def use_cascade_attention(self, *arguments: Any, **more: Any) -> bool:
        """Returns False: cascades are not used."""
        return False


class XeflashImpl(AttentionImpl):  # type: ignore[misc]
    """The attention of a layer."""

    can_return_lse_for_decode: bool = True  # vLLM asks for both before it deals the keys of a cache to ranks
    supports_dcp: bool = True

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        """Makes a layer's attention with the arguments that vLLM gives."""
        if not XeflashBackend.supports_kv_cache_dtype(kv_cache_dtype):
            raise NotImplementedError(f"xeflash: kv_cache_dtype must be one of {_CACHE_DTYPES}, got {kv_cache_dtype!r}")
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads or num_heads
        self.head_size, self.scale = head_size, float(scale)
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self.kv_cache_dtype, self.attn_type, self.sinks = kv_cache_dtype, attn_type, sinks
        self.logits_soft_cap = logits_soft_cap or 0.0
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        side = -1 if sliding_window is None else sliding_window - 1
        both = attn_type in _ENCODERS or sliding_window is None
        self.sliding_window = (side, side if both else 0)
        if attn_type not in _ENCODERS and self.dcp_world_size > 1:
            self._refuse_dealt_keys()

    def do_kv_cache_update(
        self,
        layer: Any,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
    ) -> None:
        """Writes the new tokens' keys and values, (tokens and padding, Hk, D), to their slots."""
        if self.attn_type in _ENCODERS or self.kv_sharing_target_layer_name is not None:
            return
        write_to_cache(key, value, slots=slot_mapping, **self._caches(layer, kv_cache))

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: XeflashMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Writes the rows of `output` (tokens, H, D) that are not padding."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("xeflash: output_scale must be None: outputs are not quantised")
        if attn_metadata is None:  # vLLM measures memory
            return output.fill_(0)
        m = attn_metadata
        tokens = m.num_actual_tokens
        if self.alibi_slopes is not None and self.alibi_slopes.device != query.device:
            self.alibi_slopes = self.alibi_slopes.to(query.device)
        query, out = query[:tokens], output[:tokens].view(tokens, self.num_heads, self.head_size)
        if self.attn_type in _ENCODERS:
            starts, longest = m.query_start_loc, m.max_query_len
            attend(
                q=query, k=key[:tokens], v=value[:tokens], out=out, cu_seqlens_q=starts, cu_seqlens_k=starts,
                max_seqlen_q=longest, max_seqlen_k=longest, **self._features(causal=False),
            )  # fmt: skip
            return output
        if m.context_lens is not None:
            out.copy_(self._attend_with_dealt_keys(layer, query, key[:tokens], value[:tokens], kv_cache, m))
            return output
        attend(
            q=query, block_table=m.block_table, out=out, cu_seqlens_q=m.query_start_loc, seqused_k=m.seq_lens,
            max_seqlen_q=m.max_query_len, max_seqlen_k=m.max_seq_len, **self._caches(layer, kv_cache),
            **self._features(causal=m.causal),
        )  # fmt: skip
        return output

    def _attend_with_dealt_keys(
        self, layer: Any, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor, m: XeflashMetadata
    ) -> Tensor:
        """Attends where the keys before the step lie on several ranks, and all ranks have the keys of the step."""
        group = get_dcp_group()
        everyone = group.all_gather(query.contiguous(), dim=1)  # the heads of all ranks
        said = {"cu_seqlens_q": m.query_start_loc, "max_seqlen_q": m.max_query_len, "return_lse": True}
        said |= {"softmax_scale": self.scale, "softcap": self.logits_soft_cap}
        part = attend(
            **said, q=everyone, block_table=m.block_table, seqused_k=m.context_lens,
            max_seqlen_k=m.max_context_len, **self._caches(layer, kv_cache),
        )  # fmt: skip
        context = merge_over_ranks(*part, group)
        new = attend(
            **said, q=query, k=key, v=value, cu_seqlens_k=m.query_start_loc, max_seqlen_k=m.max_query_len,
            causal=m.causal, s_aux=self.sinks,
        )  # fmt: skip
        merged: Tensor = merge_states(context, new)[0]
        return merged

    def _refuse_dealt_keys(self) -> None:
        """Refuses what depends on the positions of keys, or on keys that are only in the cache."""
        for name, given, allowed in (
            ("sliding_window", self.sliding_window, (-1, -1)),
            ("alibi_slopes", self.alibi_slopes, None),
            ("kv_sharing_target_layer_name", self.kv_sharing_target_layer_name, None),
            ("attn_type", getattr(self.attn_type, "value", self.attn_type), AttentionType.DECODER.value),
            ("num_kv_heads", self.num_kv_heads, 1),
        ):
            if given is not allowed and given != allowed:
                what = "a tensor" if isinstance(given, Tensor) else repr(given)
                raise NotImplementedError(
                    f"xeflash: {name} must be {allowed!r} with decode context parallel, got {what}"
                )

    def _caches(self, layer: Any, kv_cache: Tensor) -> dict[str, Any]:
        """Returns keys and values as (pages, page, Hk, D), and their scales; vLLM stores 8-bit floats as bytes."""
        if self.kv_cache_dtype in _vllm_rows.KEYS:
            return _vllm_rows.arrays_of(self.kv_cache_dtype, kv_cache, self.head_size)
        dtype = _EIGHT_BITS.get(self.kv_cache_dtype)
        pages = (kv_cache if dtype is None else kv_cache.view(dtype)).transpose(1, 2)
        caches = dict(zip(("k_cache", "v_cache"), pages.split(self.head_size, dim=-1), strict=True))
        if dtype is None:
            return caches
        return {**caches, "k_scale": layer._k_scale_float, "v_scale": layer._v_scale_float}

    def _features(self, *, causal: bool) -> dict[str, Any]:
        left, right = self.sliding_window
        return {
            "softmax_scale": self.scale,
            "causal": causal,
            "window_left": left,
            "window_right": right,
            "softcap": self.logits_soft_cap,
            "alibi_slopes": self.alibi_slopes,
            "s_aux": self.sinks,
        }
