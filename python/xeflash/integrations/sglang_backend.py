"""SGLang's attention backend: new keys and values go to its pool, then packed queries attend pages of the pool.

    req_to_token (requests, positions): slots of tokens  ->  each 16th, 32nd, ... divided by the page: a table of pages
    pool (slots, Hk, D)                                  ->  (pages, page, Hk, D), the same memory

Prefill, its chunks, decode and the check of guesses are one call of variable length. Latents (MLA) are keys of one
head, whose first columns are the values. See sglang.py for how it is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MLATokenToKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.runtime_context import get_parallel
from torch import Tensor

from xeflash import flash_attn_varlen_func, pack_tree_mask


@dataclass
class Step:
    """The tokens of a forward pass, and where their keys are."""

    starts: Tensor  # starts of each sequence's queries
    longest_q: int
    lengths: Tensor  # keys of each sequence, the new ones among them
    longest_k: int
    pages: Tensor  # (sequences, pages of the longest)
    is_whole: bool = False  # prompts from their first token on: all keys are new
    window_pages: Tensor | None = None  # pages of layers whose pool keeps a window only
    window_slots: Tensor | None = None
    tree: Tensor | None = None  # guesses that each guess sees, where they are a tree: bits in words


class XeflashAttnBackend(AttentionBackend):  # type: ignore[misc]
    """The attention of all layers."""

    def __init__(self, runner: Any) -> None:
        """Makes the backend of one of SGLang's ModelRunners."""
        super().__init__()
        self.page: int = runner.page_size
        if self.page % 16:
            raise ValueError(
                f"xeflash: page_size must be a multiple of 16, got {self.page}: start SGLang with --page-size 64"
            )
        ranks = get_parallel().attn_dcp_size
        if ranks > 1:
            raise NotImplementedError(f"xeflash: dcp_size must be 1, got {ranks}")
        if runner.model_config.is_encoder_decoder:
            raise NotImplementedError("xeflash: models of an encoder and a decoder are not supported")
        self.token_to_kv_pool = runner.token_to_kv_pool  # SGLang's models read both, too
        self.req_to_token_pool = runner.req_to_token_pool
        pool = runner.token_to_kv_pool
        self.has_windows = isinstance(pool, SWAKVPool) and pool.swa_layer_nums > 0
        self.has_latents = isinstance(getattr(pool, "full_kv_pool", pool), MLATokenToKVPool)
        self.recorded: dict[tuple[int, int], Step] = {}
        self.step: Step | None = None

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Prepares a pass that is not recorded, before its layers run."""
        self.step = None if forward_batch.forward_mode.is_idle() else self._step(forward_batch)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Forgets recorded passes before graphs are recorded; each graph gets its own room."""
        self.recorded = {}

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Returns the keys of an empty place in a batch."""
        return 1

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Prepares a pass before it is recorded, for sequences of any length, and before each replay.

        A replay finds its own lengths and tables in the recorded tensors.
        """
        self._replay(self._step(forward_batch), in_capture)

    def _replay(self, now: Step, in_capture: bool) -> None:
        """Puts a step into the tensors of its graph, which are made when it is recorded."""
        key = (len(now.lengths), now.longest_q)
        if in_capture:
            most = self.req_to_token_pool.req_to_token.shape[1]  # keys of a sequence, guesses among them
            pages = torch.zeros_like(now.pages[:, :1]).repeat(1, -(-most // self.page))
            self.recorded[key] = replace(
                now, longest_k=most, pages=pages, window_pages=pages.clone() if self.has_windows else None
            )
        self.step = step = self.recorded[key]
        step.lengths.copy_(now.lengths)
        for room, table in ((step.pages, now.pages), (step.window_pages, now.window_pages)):
            if room is not None and table is not None:
                room[:, : table.shape[1]].copy_(table)
        for room, found in ((step.window_slots, now.window_slots), (step.tree, now.tree)):
            if room is not None and found is not None:
                room.copy_(found)

    def forward_extend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: Tensor | None = None,
        **more: Any,
    ) -> Tensor:
        """Computes attention (tokens, H * Dv) of a layer's new tokens."""
        self._refuse(layer, more)
        step = self.step
        assert step is not None
        if save_kv_cache and k is not None:
            where = KVWriteLoc.for_batch(forward_batch, swa_loc=step.window_slots)
            layer_scales = () if self.has_latents or layer.k_scale is None else (layer.k_scale, layer.v_scale)
            self.token_to_kv_pool.set_kv_buffer(layer, where, k, v, *layer_scales)
        causal = layer.attn_type is not AttentionType.ENCODER_ONLY
        left = layer.sliding_window_size
        if step.tree is not None:
            causal = False
            if 0 <= left < step.longest_k - 1:
                raise NotImplementedError(
                    f"xeflash: sliding_window_size of a layer must be -1, or reach all {step.longest_k} keys, where "
                    f"guesses are a tree (a window counts slots, not depths), got {left}"
                )
            left = -1
        features: dict[str, Any] = {
            "softmax_scale": layer.scaling,
            "causal": causal,
            "window_size": (left, 0 if causal else left) if left >= 0 else (-1, -1),
            "softcap": layer.logit_cap or 0.0,
            "s_aux": sinks,
            "tree_mask": step.tree,
        }
        q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        if step.is_whole and k is not None and v is not None and not save_kv_cache:
            k = k.view(-1, layer.tp_k_head_num, layer.qk_head_dim)
            v = v.view(-1, layer.tp_v_head_num, layer.v_head_dim)
            out = flash_attn_varlen_func(
                q, k, v, step.starts, step.starts, step.longest_q, step.longest_q, **features
            )  # fmt: skip
        else:
            keys, values, scales = self._caches(layer)
            out = flash_attn_varlen_func(
                q, keys, values, step.starts, None, step.longest_q, step.longest_k, seqused_k=step.lengths,
                block_table=self._pages(layer, step), **scales, **features,
            )  # fmt: skip
        return out.view(-1, layer.tp_q_head_num * layer.v_head_dim)

    forward_decode = forward_extend

    def _step(self, batch: Any) -> Step:
        mode, guesses = batch.forward_mode, batch.spec_info
        if batch.encoder_lens is not None:
            raise NotImplementedError("xeflash: encoder_lens must be None: cross attention is not supported")
        more, is_whole, tree = 0, False, None
        if mode.is_target_verify():
            more = longest_q = guesses.num_tokens_per_req
            tree = self._tree(batch, guesses)
        elif mode.is_decode():
            if guesses is not None:
                raise NotImplementedError(
                    f"xeflash: spec_info of a decode step must be None, got {type(guesses).__name__}"
                )
            longest_q = 1
        elif mode.is_extend_or_draft_extend_or_mixed(include_draft_extend_v2=True):
            longest_q = max(batch.extend_seq_lens_cpu)
            is_whole = not any(batch.extend_prefix_lens_cpu)
        else:
            raise NotImplementedError(f"xeflash: forward_mode {mode.name} is not supported")
        device, count = batch.seq_lens.device, batch.batch_size
        if mode.is_decode() or mode.is_target_verify():
            starts = torch.arange(0, (count + 1) * longest_q, longest_q, dtype=torch.int32, device=device)
        else:
            starts = torch.nn.functional.pad(batch.extend_seq_lens.cumsum(0, dtype=torch.int32), (1, 0))
        lengths = batch.seq_lens if batch.seq_lens_cpu is None else batch.seq_lens_cpu
        longest_k = int(lengths.max()) + more
        firsts = self.req_to_token_pool.req_to_token[:, : longest_k : self.page][batch.req_pool_indices]
        lengths = (batch.seq_lens + more).int()
        step = Step(starts, longest_q, lengths, longest_k, firsts // self.page, is_whole, tree=tree)
        return self._with_windows(step, firsts, batch.out_cache_loc)

    def _with_windows(self, step: Step, firsts: Tensor, new_slots: Tensor | None) -> Step:
        """Adds the pages and slots of layers whose pool keeps a window only, from the first slots of pages."""
        if self.has_windows:
            to_window_slots = self.token_to_kv_pool.translate_loc_from_full_to_swa
            step.window_pages = (to_window_slots(firsts).clamp(min=0) // self.page).int()  # forgotten keys get any page
            step.window_slots = None if new_slots is None else to_window_slots(new_slots)
        return step

    def _tree(self, batch: Any, guesses: Any) -> Tensor | None:
        """Returns the guesses that each guess sees as words (tokens, W), or None for a chain.

        SGLang has a mask in three forms: rows of all keys and guesses; of guesses alone; the latter in bits.
        """
        topk, mask = getattr(guesses, "tree_topk", None), getattr(guesses, "custom_mask", None)
        if topk == 1 or guesses.num_tokens_per_req == 1:
            return None
        if topk is None or mask is None:
            raise NotImplementedError(
                f"xeflash: guesses must have tree_topk and, for a tree, custom_mask, got {type(guesses).__name__}"
            )
        nodes, count = guesses.num_tokens_per_req, batch.batch_size
        if guesses.draft_token is not None:
            count = len(guesses.draft_token) // nodes  # sequences; what follows them fills the batch of a graph
        if mask.dtype is not torch.bool:
            words = (mask.view(torch.int32) if mask.itemsize == 4 else mask.int())[:, None]
        else:
            if mask.numel() != count * nodes**2:  # rows of all keys, of which the last are the guesses
                ends = (batch.seq_lens[:count] + nodes).repeat_interleave(nodes).cumsum(0)
                mask = mask[ends[:, None] + torch.arange(-nodes, 0, device=mask.device)]
            words = pack_tree_mask(mask.view(-1, nodes, nodes)).flatten(0, 1)
        return torch.nn.functional.pad(words, (0, 0, 0, (batch.batch_size - count) * nodes), value=-1)

    def _pages(self, layer: Any, step: Step) -> Tensor | None:
        if self.has_windows and self.token_to_kv_pool.layers_mapping[layer.layer_id][1]:
            return step.window_pages
        return step.pages

    def _caches(self, layer: Any) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Returns keys and values as (pages, page, Hk, D), and the factors of their elements."""
        keys, values = self.token_to_kv_pool.get_kv_buffer(layer.layer_id)
        want = [(layer.tp_k_head_num, layer.qk_head_dim), (layer.tp_v_head_num, layer.v_head_dim)]
        if [x.shape[1:] for x in (keys, values)] != want:
            raise NotImplementedError(
                f"xeflash: rows of the pool must be (heads, head_dim) as the layer has them, {want[0]} of keys and "
                f"{want[1]} of values, got {list(keys.shape)} and {list(values.shape)}"
            )
        scales = {}
        if keys.dtype.itemsize == 1:
            layer_scales = (None, None) if self.has_latents else (layer.k_scale_float, layer.v_scale_float)
            scales = {f"{name}_scale": scale or 1.0 for name, scale in zip("kv", layer_scales, strict=True)}
        return keys.unflatten(0, (-1, self.page)), values.unflatten(0, (-1, self.page)), scales

    def _refuse(self, layer: Any, more: dict[str, Any]) -> None:
        """Raises an error for features of a layer that a call cannot express."""
        for name, value in more.items():
            if value is not None:
                raise NotImplementedError(f"xeflash: {name} must be None, got {type(value).__name__}")
        for name, allowed in (
            ("is_cross_attention", (False,)),
            ("use_irope", (False,)),
            ("pos_encoding_mode", ("NONE",)),
            ("xai_temperature_len", (-1,)),
            ("attn_type", (AttentionType.DECODER, AttentionType.ENCODER_ONLY)),
            ("logit_capping_method", ("tanh",) if layer.logit_cap else (layer.logit_capping_method,)),
        ):
            if (got := getattr(layer, name)) not in allowed:
                raise NotImplementedError(f"xeflash: {name} of a layer must be {allowed[0]!r}, got {got!r}")


class XeflashDraftBackend:
    """The attention of a draft model while it guesses: one backend for each of its steps."""

    def __init__(self, runner: Any, topk: int, steps: int) -> None:
        """Makes backends for all steps but the last, which runs no layer."""
        self.topk, self.steps = topk, steps
        self.attn_backends = [XeflashAttnBackend(runner) for _ in range(steps - 1)]

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Prepares all steps, before the first."""
        for backend, step in zip(self.attn_backends, self._steps(forward_batch), strict=True):
            backend.step = step

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Forgets recorded steps before graphs are recorded."""
        for backend in self.attn_backends:
            backend.init_cuda_graph_state(max_bs, max_num_tokens)

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Prepares all steps before they are recorded, and before each replay."""
        for backend, step in zip(self.attn_backends, self._steps(forward_batch), strict=True):
            backend._replay(step, in_capture)

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        """Adds nothing to a graph, as all is prepared before."""

    def _steps(self, batch: Any) -> list[Step]:
        """Returns the steps, in which each branch of a tree is a sequence of its own.

        SGLang gives each branch whole pages behind those that are full, and copies into them the keys of a page that
        is not.
        """
        topk, backend, before = self.topk, self.attn_backends[0], batch.seq_lens
        page, count = backend.page, batch.batch_size * topk
        longest = int((before if batch.seq_lens_cpu is None else batch.seq_lens_cpu).max())
        columns = torch.arange(-(-(longest + self.steps) // page), device=before.device)
        branches = torch.arange(topk, device=before.device)
        full, own = (x[:, None, None] for x in (before // page, -(-(before % page + self.steps) // page)))
        at = columns + (columns >= full) * branches[:, None] * own
        firsts = backend.req_to_token_pool.req_to_token[:, ::page][batch.req_pool_indices]
        firsts = firsts.gather(1, at.flatten(1).clamp(max=firsts.shape[1] - 1)).view(count, -1)
        starts = torch.arange(count + 1, dtype=torch.int32, device=before.device)
        lengths = before.repeat_interleave(topk).int()
        slots = batch.out_cache_loc.view(count, self.steps)
        return [
            each._with_windows(Step(starts, 1, lengths + i, longest + i, firsts // page), firsts, slots[:, i - 1])
            for i, each in enumerate(self.attn_backends, 1)
        ]
