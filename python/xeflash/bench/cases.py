"""Cases of attention: a `Case` is one problem, a `Grid` a product of choices, and a preset some grids."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

_Kind = TypeVar("_Kind")
# Of `bench lm-head`, whose own module imports torch.
HEAD_OPERATIONS = ("loss", "train", "train-workspace", "log-prob", "argmax", "top-k", "sample")
PHASES = ("prefill", "decode", "verify", "backward", "train")
DEFAULT_PHASES = ("prefill", "decode")
ON_CACHE = ("decode", "verify")  # few queries of each sequence, many keys
# Of Q K^T's size; the backward pass makes S again.
_PRODUCTS = {"prefill": 2, "decode": 2, "verify": 2, "backward": 5, "train": 7}
DTYPES = ("fp32", "bf16", "fp16")
KV_DTYPES = (*DTYPES, "fp8", "int8", "k8v4")  # of caches; with less than 16 bits they have scales of rows
LEAST_BLOCK = 16  # kLeastBlock of kernels/attention/listed.hpp
_ALGORITHMS = {"prefill": "flash_fwd", "decode": "flash_decode", "verify": "flash_fwd"}
_ALGORITHMS |= dict.fromkeys(("backward", "train"), "flash_bwd_dkv")
_ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class Case:
    """One attention problem; decode has a single query row and no mask.

    verify is a tree of guesses on a cache, whose last seq_q keys are those of its nodes, the queries. backward is the
    gradients of q, k and v after a forward pass, train is both passes. With `share`, each block of `block_size` rows
    sees that share of the blocks of as many keys, rounded to whole blocks. With `kv_dtype` keys and values lie in a
    cache of that type, else they are of the queries' type.
    """

    phase: str
    dtype: str
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    seq_q: int
    seq_k: int
    causal: bool
    share: float | None = None
    block_size: int = 0
    kv_dtype: str = ""

    @property
    def cached(self) -> str:
        """Returns the type of keys and values."""
        return self.kv_dtype or self.dtype

    @property
    def picked(self) -> int:
        """Returns how many blocks of keys each block of rows lists, one at least."""
        return max(1, round((self.share or 1.0) * self._key_blocks))

    @property
    def listed(self) -> float:
        """Returns the share of the blocks that is listed, after rounding; 1 without such a mask."""
        return 1.0 if self.share is None else self.picked / self._key_blocks

    @property
    def _key_blocks(self) -> int:
        return -(-self.seq_k // self.block_size)

    @property
    def group(self) -> int:
        """Returns how many query heads share one key/value head."""
        return self.heads // self.kv_heads

    @property
    def algorithm(self) -> str:
        """Returns the kernel that does most of the work."""
        return _ALGORITHMS[self.phase]

    @property
    def gradients(self) -> bool:
        """Returns whether the results are gradients of q, k and v."""
        return self.phase in ("backward", "train")

    @property
    def flops(self) -> float:
        """Returns the operations of the products of matrices; half of them for a causal triangle."""
        product = 2.0 * self.batch * self.heads * self.seq_q * self.seq_k * self.head_dim * self.listed
        return _PRODUCTS[self.phase] * product / (2 if self.causal else 1)

    @property
    def kv_bytes(self) -> int:
        """Returns the bytes of K and V, with their scales, which decode has to read."""
        return self.batch * self.kv_heads * self.seq_k * key_bytes(self.cached, self.head_dim)

    @property
    def memory_bytes(self) -> int:
        """Returns an estimate of the peak: tensors, and a batch entry in fp64, twice; gradients double it."""
        q_elements = self.batch * self.heads * self.seq_q * self.head_dim
        kv_elements = 2 * self.batch * self.kv_heads * self.seq_k * self.head_dim
        tensors = self.kv_bytes + 4 * q_elements * _ELEMENT_BYTES[self.dtype]
        forward = tensors + 2 * 8 * (kv_elements * self.group + 2 * q_elements) // self.batch
        if self.share is not None:  # torch's mask of all scores, and what the reference makes of it
            forward += 9 * self.heads * self.seq_q * self.seq_k
        return 2 * forward if self.gradients else forward

    @property
    def label(self) -> str:
        """Returns a short name for the progress bar and for messages."""
        mask = " causal" if self.causal else ""
        if self.share is not None:
            mask += f" topk {self.share:g} of {self.block_size}"
        if self.kv_dtype:
            mask += f" in {self.kv_dtype}"
        return (
            f"{self.phase} {self.dtype} B{self.batch} H{self.heads}/{self.kv_heads} "
            f"D{self.head_dim} {self.seq_q}x{self.seq_k}{mask}"
        )


def key_bytes(dtype: str, dim: int) -> int:
    """Returns the bytes of a key and its value, with their scales: in fp32, or of 64 values in 4 bits in fp16."""
    if dtype == "k8v4":
        return dim + 4 + dim // 2 + dim // 32
    return 2 * dim * _ELEMENT_BYTES[dtype] if dtype in _ELEMENT_BYTES else 2 * (dim + 4)


@dataclass(frozen=True)
class Grid:
    """Choices for one phase. `lengths` is the key length on a cache, else the sequence."""

    dtypes: tuple[str, ...]
    batches: tuple[int, ...]
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]  # empty: as many as query heads
    head_dims: tuple[int, ...]
    lengths: tuple[int, ...]
    causal: bool = True
    keys: int | None = None  # of all phases but those on a cache; None: as many as queries
    trees: tuple[int, ...] = (8, 32)  # nodes, of verify
    shares: tuple[float | None, ...] = (None,)  # of the blocks that are listed, of phases that have no cache
    block_size: int = 0
    kv_dtypes: tuple[str, ...] = ("",)  # of phases on a cache


def _image(dtype: str, batch: int, *layers: tuple[int, int, int], text: int | None = None) -> dict[str, Sequence[Grid]]:
    """Returns the attention of an image model on itself, and on so many tokens of a text."""
    grids = [
        Grid((dtype,), (batch,), (heads,), (), (dim,), (length,), causal=False, keys=keys)
        for keys in (None, *([text] if text else []))
        for heads, dim, length in layers
    ]
    return dict.fromkeys(("prefill", "backward", "train"), grids)


def _decode(batch: int, heads: int, kv_heads: int, dim: int, keys: int = 4096) -> Grid:
    return Grid(("bf16",), (batch,), (heads,), (kv_heads,), (dim,), (keys,))


def _prompt(
    batch: int, heads: int, kv_heads: tuple[int, ...], dim: int, length: int, dtype: str = "bf16",
    causal: bool = False, keys: int | None = None,
) -> Grid:  # fmt: skip
    return Grid((dtype,), (batch,), (heads,), kv_heads, (dim,), (length,), causal, keys)


_QUICK = Grid(("fp32", "bf16"), (1,), (8,), (), (64, 128), (1024, 2048))
_QUICK_CACHE = Grid(("fp32", "bf16"), (1,), (32,), (32, 8), (128,), (1024, 4096))
_FULL = Grid(DTYPES, (1,), (8,), (), (64, 128), (1024, 2048, 4096))
_FULL_CACHE = Grid(DTYPES, (1, 8), (32,), (32, 8), (128,), (1024, 4096, 16384))
PRESETS: dict[str, Mapping[str, Sequence[Grid]]] = {
    "quick": {
        "prefill": [_QUICK],
        "decode": [_QUICK_CACHE],
        "verify": [_QUICK_CACHE],
        "backward": [_QUICK],
        "train": [_QUICK],
    },
    "full": {
        "prefill": [_FULL],
        "decode": [_FULL_CACHE],
        "verify": [_FULL_CACHE],
        "backward": [_FULL],
        "train": [_FULL],
    },
    # Heads, head dim and length of each size of layer: a picture of 512 x 512 (sd15), or 1024 x 1024. Stable Diffusion
    # computes a batch of two, with the prompt and without; Flux has its 512 tokens of text beside those of the picture.
    "sd15": _image("fp16", 2, (8, 40, 4096), (8, 80, 1024), (8, 160, 256), (8, 160, 64), text=77),
    "sdxl": _image("fp16", 2, (10, 64, 4096), (20, 64, 1024), text=77),
    "flux": _image("bf16", 1, (24, 128, 4608)),
    # Calls whose times others have published, in milliseconds; those without a name are of sgl-kernel-xpu's
    # benchmark/baseline.json at 9cf16bf, on its runner of BMG cards, of decode with pages of 128 keys.
    "card": {
        "decode": [
            _decode(1, 16, 8, 128),  # 0.0944
            _decode(8, 16, 8, 128),  # 0.365
            _decode(16, 16, 8, 128),  # 0.6615
            _decode(4, 32, 4, 128, 8192),  # B70, with 8 queries, K in fp8 and V in 4 bits: 3.229 (turboquant-xpu)
            _decode(8, 16, 8, 64),  # 0.2167
            _decode(8, 16, 8, 256),  # 0.6674
        ],
        "prefill": [
            _prompt(4, 8, (), 128, 512),  # B60: 0.172 (kernels-community, pull request 671)
            _prompt(4, 8, (), 64, 2048),  # B60: 0.415 (the same)
            _prompt(8, 16, (8,), 128, 128, keys=4096),  # 0.7716, without pages (baseline.json, as above)
            _prompt(4, 32, (), 64, 2048, "fp16", causal=True),  # Max 1100: 71 TFLOP/s (triton-xpu, issue 5553)
            _prompt(1, 32, (8,), 128, 4096, causal=True),  # B60, paged, by Triton: 12.0 (vllm, pull request 47246)
            _prompt(1, 40, (), 128, 4096),  # of 75,000 tokens, B60: 83.8 TFLOP/s, B70: 123 (auto-round, 2145)
        ],
    },
}
PRESET_ROUNDS = {"full": 21}  # of the others 9


def product(kind: type[_Kind], **choices: Any) -> list[_Kind]:
    """Returns every case of the choices once: a field that is a tuple is a choice; the first field changes last."""
    chosen = {name: choice if isinstance(choice, tuple) else (choice,) for name, choice in choices.items()}
    cases = [kind(**dict(zip(chosen, values, strict=True))) for values in itertools.product(*chosen.values())]
    return list(dict.fromkeys(cases))


def check_heads(cases: Iterable[Any]) -> None:
    """Raises if the KV heads of a case do not divide its query heads."""
    for case in cases:
        if case.heads % case.kv_heads:
            raise ValueError(f"bench: --heads must be a multiple of --kv-heads, got {case.heads} and {case.kv_heads}")


def expand(phase: str, grid: Grid) -> list[Case]:
    """Returns every case of the grid, in the order of the loops dtype, D, heads, batch, length, type of the cache.

    Types of caches that a call cannot have are left out.
    """
    cases = []
    kv_dtypes = grid.kv_dtypes if phase in ON_CACHE else ("",)
    sizes = list(itertools.product(grid.batches, grid.lengths, grid.shares, kv_dtypes))
    for dtype, dim, heads in itertools.product(grid.dtypes, grid.head_dims, grid.heads):
        for kv_heads, (batch, length, share, kv) in itertools.product(grid.kv_heads or (heads,), sizes):
            if (kv in DTYPES and kv != dtype) or (kv == "k8v4" and (dtype == "fp32" or dim % 64)):
                continue
            causal = grid.causal and phase not in ON_CACHE
            for seq_q in {"decode": (1,), "verify": grid.trees}.get(phase, (length,)):
                keys, size = grid.keys or length, 0 if share is None else grid.block_size
                cases.append(Case(phase, dtype, batch, heads, kv_heads, dim, seq_q, keys, causal, share, size, kv))
                if phase == "verify" and seq_q > length:
                    raise ValueError(f"bench: --tree must be at most --kv-len, got {seq_q} and {length}")
    check_heads(cases)
    return cases


_MOST = 1 << 31


def parse_size(text: str) -> int:
    """Returns the positive number in "4096" or "4k" (k = 1024)."""
    number, unit = (text[:-1], 1024) if text[-1:] in ("k", "K") else (text, 1)
    if not number.isdecimal() or not 0 < int(number) <= _MOST:
        raise ValueError(f"a positive whole number such as 4096 or 4k, at most {_MOST}, is wanted, got {text!r}")
    return int(number) * unit


def parse_sizes(text: str) -> tuple[int, ...]:
    """Returns the sizes of a comma list such as "1k,2k"."""
    return tuple(parse_size(item.strip()) for item in text.split(","))


def parse_shares(text: str) -> tuple[float, ...]:
    """Returns the shares in "topk:0.5,0.3", which are above 0 and up to 1."""
    kind, _, numbers = text.partition(":")
    try:
        shares = tuple(float(item) for item in numbers.split(","))
    except ValueError:
        shares = ()
    if kind != "topk" or not shares or not all(0 < share <= 1 for share in shares):
        raise ValueError(f"topk: and shares above 0 and up to 1, such as topk:0.5,0.1, are wanted, got {text!r}")
    return shares


def parse_block_size(text: str) -> int:
    """Returns the rows and keys of a block, a multiple of 16."""
    size = parse_size(text)
    if size % LEAST_BLOCK:
        raise ValueError(f"a multiple of {LEAST_BLOCK} is wanted, got {text!r}")
    return size


def parse_choices(text: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the words of a comma list, each of which must be allowed."""
    words = tuple(item.strip() for item in text.split(","))
    for word in words:
        if word not in allowed:
            raise ValueError(f"choose from {', '.join(allowed)}, got {word!r}")
    return words
