"""torch's own attention functions, by xeflash, in code that is not changed for it.

    with torch_sdpa.use_xeflash():            # this thread; or enable() and disable(): all threads
        model(tokens)

It registers with torch's dispatcher, so it sees every call of ``torch.nn.functional.scaled_dot_product_attention`` and
of ``torch.nn.attention.varlen`` on CPU and XPU tensors, also those of code that imported the functions before, and
those that torch.compile traces while it is on (what was compiled before stays what it was). The registration stays once
it was used: while it is off a call goes on to torch's own, which takes some 2 us more than before, and
``ExportedProgram.run_decompositions`` leaves scaled_dot_product_attention whole.

DTensors that torch's context parallel makes go to ``xeflash.distributed``, see _torch_context_parallel.py.

``nn.MultiheadAttention`` and ``nn.TransformerEncoder`` in eval mode have a fast path in torch that calls no such
function. While any thread sends its calls here it is off, as by ``torch.backends.mha.set_fastpath_enabled(False)``, for
all threads; afterwards it is what it was.

torch's registry knows it, too, once this module was imported: ``torch.nn.attention.activate_flash_attention_impl(
"xeflash")`` is enable(), and ``restore_flash_attention_impl()`` undoes it.

What xeflash does not have goes on to torch's own function, with all it does: dropout (its random numbers are torch's),
fp64 and complex numbers, nested tensors and other subclasses, arguments that torch broadcasts or refuses, and function
transforms. Gradients are xeflash's where the forward pass was; they cannot be differentiated again. Those of
torch.nn.attention.varlen go through the LSE, too, which torch's leave out. ``calls`` counts which way calls went. The
backends that ``torch.nn.attention.sdpa_kernel`` allows are torch's choice among its own and say nothing here.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import DispatchKey

from xeflash import _core, attention, torch_ops
from xeflash.call.call import Call
from xeflash.call.schema import THD
from xeflash.integrations import _torch_context_parallel
from xeflash.integrations._from_torch import TYPES, Calls, Switch, are_plain, have_kernels
from xeflash.torch_ops.library import requires_grad

_lock = threading.Lock()
_libraries: list[Any] = []
_fast_path = True  # the setting of the fast path before
_record_by_torch: dict[str, Any] = {}  # torch's own kernels above autograd, of varlen


def calls() -> Calls:
    """Returns the counts; a compiled function counts when it is traced.

    Threads that call at once may lose a count.
    """
    return _switch.calls()


def enable() -> None:
    """Sends the calls of all threads to xeflash, until ``disable``.

    >>> import torch
    >>> from xeflash.integrations import torch_sdpa
    >>> torch_sdpa.enable()
    >>> q, before = torch.ones(1, 2, 5, 64), torch_sdpa.calls()
    >>> _ = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    >>> torch_sdpa.calls().xeflash - before.xeflash
    1
    >>> torch_sdpa.disable()
    """
    _switch.enable()


def disable() -> None:
    """Undoes ``enable``; open contexts of ``use_xeflash`` stay in force."""
    _switch.disable()


@contextlib.contextmanager
def use_xeflash() -> Iterator[None]:
    """Sends the calls of this thread (or asynchronous task) to xeflash.

    >>> import torch
    >>> from xeflash.integrations import torch_sdpa
    >>> q = torch.ones(1, 2, 5, 64)
    >>> with torch_sdpa.use_xeflash():
    ...     out = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    """
    with _switch.here():
        yield


class _Activation:
    """The handle that torch's registry holds while it has us activated."""

    def __init__(self) -> None:
        self._before = _switch.is_everywhere
        enable()

    def remove(self) -> None:
        """Undoes the activation; calls stay here if they came here before."""
        if not self._before:
            disable()


with contextlib.suppress(AttributeError):  # torch before 2.11
    torch.nn.attention.register_flash_attention_impl("xeflash", register_fn=_Activation)


def _hold_fast_path() -> None:
    global _fast_path
    _fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)


def _release_fast_path() -> None:
    torch.backends.mha.set_fastpath_enabled(_fast_path)


def _register() -> None:
    """Registers our kernels, once in a process and for good.

    torch's dispatcher does not bear that kernels go while other threads call them.
    """
    with _lock:
        if _libraries:
            return
        aten = torch.library.Library("aten", "IMPL")
        for key in ("CPU", "XPU", "AutogradCPU", "AutogradXPU"):
            aten.impl("scaled_dot_product_attention", _sdpa, key)
        # torch remembers operators that it traced before to have no kernel.
        torch.ops.aten.scaled_dot_product_attention.default._dispatch_cache.clear()
        _libraries.append(aten)
        with contextlib.suppress(ImportError):  # torch before 2.10
            importlib.import_module("torch.nn.attention.varlen")
            packed = torch.library.Library("torch_attn", "IMPL")
            for key in ("CPU", "XPU"):
                packed.impl("_varlen_attn", _varlen, key)
                if hasattr(torch.ops.torch_attn, "_varlen_attn_out"):
                    packed.impl("_varlen_attn_out", _varlen_out, key)
                # torch's own gradients are found before ours take their place
                _record_by_torch[key] = torch.library.get_kernel("torch_attn::_varlen_attn", f"Autograd{key}")
                packed.impl("_varlen_attn", _varlen_recorded, f"Autograd{key}", with_keyset=True)
            _libraries.append(packed)


_switch = Switch("torch_sdpa", _register, _hold_fast_path, _release_fast_path)


# ---- scaled_dot_product_attention ---------------------------------------------------------------


def _sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    ours = _switch.is_on() and (
        are_plain(query, key, value)
        and dropout_p == 0.0
        and (scale is None or math.isfinite(scale))
        and _shapes_fit(query, key, value, enable_gqa)
        and (attn_mask is None or (not is_causal and _mask_fits(attn_mask, query, key)))
    )
    if not ours and _switch.is_on() and type(query).__name__ == "DTensor":
        dealt = _torch_context_parallel.attend(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        )  # fmt: skip
        if dealt is not None:
            _switch.count(True)
            return dealt
    if not _switch.count(ours):
        return torch.ops.aten.scaled_dot_product_attention.default._op_dk(
            DispatchKey.CompositeImplicitAutograd, query, key, value, attn_mask, dropout_p, is_causal,
            scale=scale, enable_gqa=enable_gqa,
        )  # fmt: skip
    out = None
    plain = not torch_ops.needed(query, key, value) and not requires_grad(query, key, value, attn_mask)
    if plain and query.dim() == 4 and value.shape[-1] == query.shape[-1]:
        out = torch.empty_like(query)  # in memory as torch's own flash attention has it, for models that transpose back
        out = out if out.stride(-1) == 1 else None
    return attention(query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa, out=out)


def _shapes_fit(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> bool:
    """Returns whether nothing has to be broadcast, except heads with enable_gqa."""
    rank, dim = query.dim(), query.shape[-1]
    if rank < 2 or key.dim() != rank or value.dim() != rank or key.shape[:-1] != value.shape[:-1]:
        return False
    if key.shape[-1] != dim or not have_kernels(dim, value.shape[-1], query.device.type):
        return False
    if enable_gqa and rank > 2:
        heads, heads_k = query.shape[-3], key.shape[-3]
        return bool(query.shape[:-3] == key.shape[:-3] and heads_k > 0 and heads % heads_k == 0)
    return bool(query.shape[:-2] == key.shape[:-2])


def _mask_fits(mask: Tensor, query: Tensor, key: Tensor) -> bool:
    if type(mask) not in TYPES or mask.dtype not in (torch.bool, query.dtype) or mask.layout is not torch.strided:
        return False
    sizes = (*query.shape[:-1], key.shape[-2])
    rank = mask.dim()
    return 2 <= rank <= len(sizes) and all(n in (1, m) for n, m in zip(mask.shape, sizes[-rank:], strict=True))


# ---- torch.nn.attention.varlen ------------------------------------------------------------------
# Calls that are recorded for gradients are taken above autograd, all others below it. There, a tensor that requires
# grad belongs to a call that torch records, whose backward needs its own forward.


def _varlen_recorded(keys: Any, *arguments: Any) -> Any:
    call = _PackedCall(*arguments)
    tensors = arguments[:3]
    if not requires_grad(*tensors):
        if any(x.requires_grad for x in tensors):
            tensors = tuple(x.detach() for x in tensors)
    elif call.fits() and call.seqused_k is None and call.block_table is None:
        return call.record()
    return _record_by_torch[call.query.device.type.upper()].call_boxed(keys, *tensors, *arguments[3:])


def _varlen(*arguments: Any) -> Any:
    call = _PackedCall(*arguments)
    recorded = not torch.is_inference_mode_enabled() and any(x.requires_grad for x in arguments[:3])
    if not _switch.count(call.fits() and not recorded):
        return torch.ops.torch_attn._varlen_attn.default._op_dk(DispatchKey.CompositeExplicitAutograd, *arguments)
    out = torch.empty_like(call.query)
    return out, call.attend(out), torch.zeros(2, dtype=torch.uint64, device=out.device)


def _varlen_out(out: Tensor, *arguments: Any) -> Any:
    call = _PackedCall(*arguments)
    fits = (
        call.fits() and not requires_grad(*call[:3]) and out.dtype is call.query.dtype and out.shape == call.query.shape
    )
    if not _switch.count(fits and (out.stride(-1) == 1 or out.shape[-1] == 1)):
        return torch.ops.torch_attn._varlen_attn_out.default._op_dk(
            DispatchKey.CompositeExplicitAutograd, out, *arguments
        )
    return call.attend(out)


class _PackedCall(NamedTuple):
    """The arguments of torch's operators, in their order."""

    query: Tensor
    key: Tensor
    value: Tensor
    cu_seq_q: Tensor
    cu_seq_k: Tensor | None
    max_q: int
    max_k: int
    is_causal: bool = False
    scale: float | None = None
    window_size: list[int] | None = None
    enable_gqa: bool = False
    seqused_k: Tensor | None = None
    block_table: Tensor | None = None
    num_splits: int | None = None

    def fits(self) -> bool:
        query, key, value = self[:3]
        rank = 3 if self.block_table is None else 4
        return (
            _switch.is_on()
            and are_plain(query, key, value)
            and (query.dim(), key.dim(), value.dim()) == (3, rank, rank)
            and query.shape[-1] == key.shape[-1] == value.shape[-1]
            and have_kernels(query.shape[-1], value.shape[-1], query.device.type)
            and (self.block_table is None or (key.shape[1] > 0 and key.shape[1] % 16 == 0))
            and (self.cu_seq_k is not None or (self.block_table is not None and self.seqused_k is not None))
            and not self.num_splits
            and (self.scale is None or math.isfinite(self.scale))
        )

    def _words(self) -> Any:
        """Returns the arguments by the extension's names."""
        left, right = self.window_size or (-1, -1)
        paged = {"k_cache": self.key, "v_cache": self.value, "block_table": self.block_table}
        keys: Any = {"k": self.key, "v": self.value} if self.block_table is None else paged
        return keys | {
            "function": "varlen_attn",
            "layout": THD,
            "q": self.query,
            "cu_seqlens_q": self.cu_seq_q,
            "cu_seqlens_k": self.cu_seq_k,
            "max_seqlen_q": self.max_q,
            "max_seqlen_k": self.max_k,
            "seqused_k": self.seqused_k,
            "softmax_scale": self.scale,
            "causal": self.is_causal,
            "window_left": left,
            "window_right": right,
            "return_lse": True,
        }

    def attend(self, out: Tensor) -> Tensor:
        """Writes `out` and returns the LSE."""
        lse: Tensor = _core.forward(**self._words(), out=out)[1]
        return lse

    def record(self) -> tuple[Tensor, Tensor, Tensor]:
        """Runs the call with gradients of out and LSE; returns the operator's results."""
        _switch.count(True)
        with torch.autocast(self.query.device.type, enabled=False):  # torch casts nothing here
            out, lse = torch_ops.attend(Call(self._words()))
        return out, lse, torch.zeros(2, dtype=torch.uint64, device=out.device)
