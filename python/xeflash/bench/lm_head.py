"""The benchmark of a language model's head: losses, the largest logits, and tokens that are drawn, beside torch."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import xeflash
from xeflash.bench.check import beside_fp64
from xeflash.bench.forms import TORCH_DTYPES
from xeflash.bench.linear.cases import GROUP
from xeflash.bench.linear.weights import quantise
from xeflash.bench.llm.presets import PRESETS
from xeflash.bench.numbers import number
from xeflash.bench.plot import Picture
from xeflash.bench.rows import OURS, Compared
from xeflash.bench.runner import Benchmark, Call, Options, Problem
from xeflash.bench.tables import comparison

OF_TRAINING = ("loss", "train", "train-workspace", "log-prob")
TOP_K, TOP_P = 50, 0.9
WORKSPACE = 256 << 20  # bytes
ROUNDING = 1e-5
METHOD = [
    "a head (V, H) of normal numbers times 3 H^-1/2 on rows of normal numbers",
    "loss: cross entropy of random tokens, its mean; train: that and gradients of rows and head, by logits "
    "made again, train-workspace: in the forward pass with workspace=256 MiB; log-prob: of given "
    f"tokens; top-k: {TOP_K} logits; sample: temperature 0.8, top_k {TOP_K}, top_p {TOP_P}, a seed per row",
    "GFLOP/s: one product of rows and head for all but train and train-workspace, which have three",
    "max |error| of losses, probabilities and logits against fp64 must be at most 2 x that of eager torch in the same "
    "dtype + 1e-5 of the largest; tokens of argmax and sample are not judged here, but by the tests",
]
_NOTES = {
    "eager": "torch's operations on all logits, in fp32 from there on, weights in the type of rows in the place of "
    "quantised ones",
    "chunked": "F.linear_cross_entropy, where torch has it",
}
_TRAINING = ("train", "train-workspace")


@dataclass(frozen=True)
class HeadCase:
    """An operation on the head of a model, or of given sizes."""

    operation: str
    model: str
    vocabulary: int
    hidden: int
    dtype: str
    weights: str
    rows: int

    @property
    def label(self) -> str:
        """Returns a short name for the progress bar and for messages."""
        quantised = "" if self.weights == "same" else f" {self.weights}"
        return f"{self.operation} {self.rows} x {self.hidden} x {self.vocabulary} {self.dtype}{quantised}"

    @property
    def gradients(self) -> bool:
        """Returns whether gradients are computed."""
        return self.operation in _TRAINING


@dataclass(frozen=True)
class HeadRow(Compared, HeadCase):
    """A case and what was measured of it."""

    section = "lm-head"


def heads_of(models: Sequence[str]) -> list[tuple[str, int, int]]:
    """Returns (model, vocabulary, hidden) of presets."""
    return [(name, PRESETS[name].options["vocab_size"], PRESETS[name].options["hidden_size"]) for name in models]


def expand(
    operations: Sequence[str],
    heads: Sequence[tuple[str, int, int]],
    dtypes: Sequence[str],
    weights: Sequence[str],
    rows: Sequence[int],
) -> list[HeadCase]:
    """Returns every case of the choices; only tokens are drawn from quantised heads."""
    choices = itertools.product(operations, heads, dtypes, weights, rows)
    return [HeadCase(o, *h, d, w, n) for o, h, d, w, n in choices if w == "same" or o == "sample"]


def _drawn(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Draws a token from each row as programs do that have no fused sampler."""
    z = logits.float() / 0.8
    z = z.masked_fill(z < z.topk(TOP_K).values[:, -1:], -torch.inf)
    ordered, order = z.sort()
    ordered = ordered.masked_fill(ordered.softmax(-1).cumsum(-1) <= 1 - TOP_P, -torch.inf)
    picked = torch.multinomial(ordered.softmax(-1), 1, generator=generator)
    return order.gather(1, picked).flatten()


def _wide(z: Tensor) -> Tensor:
    """Returns logits in fp32, or in fp64 if they are."""
    return z.to(torch.promote_types(z.dtype, torch.float32))


def _problem(case: HeadCase, options: Options) -> Problem:
    generator = torch.Generator(device=options.device).manual_seed(options.seed)
    normal = functools.partial(torch.randn, generator=generator, device=options.device)
    dtype = TORCH_DTYPES[case.dtype]
    x, w = normal(case.rows, case.hidden).to(dtype), (normal(case.vocabulary, case.hidden)).to(dtype)
    w *= 3 * case.hidden**-0.5
    y = torch.randint(case.vocabulary, (case.rows,), generator=generator, device=options.device)
    make = _losses if case.operation in ("loss", *_TRAINING) else functools.partial(_logits, generator=generator)
    calls, right = make(case, x, w, y)
    return Problem(
        calls=calls,
        check=lambda: beside_fp64(calls[OURS](), calls["eager"](), right(), ROUNDING) if right else None,
        flops=2.0 * case.rows * case.vocabulary * case.hidden * (3 if case.gradients else 1),
        optional={"chunked": "F.linear_cross_entropy"},
        memory=True,
        eager=calls["eager"],
    )


def _logits(
    case: HeadCase, x: Tensor, w: Tensor, y: Tensor, generator: torch.Generator
) -> tuple[dict[str, Call], Call | None]:
    """Returns the calls of an operation on logits, and what is right in fp64, if that can be said."""
    head: dict[str, Any] = {"weight": w}
    if case.weights != "same":
        quantised = quantise(w, case.weights, GROUP)
        w, head = quantised.numbers(), quantised.arguments()
    limits: dict[str, Any] = {"temperature": 0.8, "top_k": TOP_K, "top_p": TOP_P}
    limits["seed"] = torch.arange(case.rows, device=x.device)
    forms: dict[str, tuple[Call, Callable[[Tensor], Tensor]]] = {
        "log-prob": (
            lambda: xeflash.linear_log_prob(x, w, y),
            lambda z: _wide(z).log_softmax(-1).gather(1, y[:, None]).flatten(),
        ),
        "argmax": (lambda: xeflash.linear_argmax(x, w), lambda z: z.argmax(-1)),
        "top-k": (lambda: xeflash.linear_top_k(x, w, TOP_K)[0], lambda z: _wide(z).topk(TOP_K).values),
        "sample": (lambda: xeflash.linear_sample(x, **head, **limits), lambda z: _drawn(z, generator)),
    }
    ours, by_logits = forms[case.operation]
    right = None if case.operation in ("argmax", "sample") else lambda: by_logits(x.double() @ w.double().mT)
    return {OURS: ours, "eager": lambda: by_logits(x @ w.mT)}, right


def _losses(case: HeadCase, x: Tensor, w: Tensor, y: Tensor) -> tuple[dict[str, Call], Call]:
    """Returns the calls of a loss, or of its gradients, and what is right in fp64."""
    more: dict[str, Any] = {"workspace": WORKSPACE} if case.operation == "train-workspace" else {}

    def by_torch(x: Tensor, w: Tensor) -> Tensor:
        return F.cross_entropy(_wide(x @ w.mT), y)

    losses: dict[str, Callable[[Tensor, Tensor], Any]] = {
        OURS: lambda x, w: xeflash.linear_cross_entropy(x, w, y, **more),
        "eager": by_torch,
        "right": by_torch,
    }
    if hasattr(torch.nn, "LinearCrossEntropyOptions"):
        chunks = torch.nn.LinearCrossEntropyOptions()
        losses["chunked"] = lambda x, w: F.linear_cross_entropy(x, w, y, options=chunks)
    if case.gradients:
        losses = {name: functools.partial(_step, loss) for name, loss in losses.items()}
    right = losses.pop("right")
    calls: dict[str, Call] = {name: functools.partial(loss, x, w) for name, loss in losses.items()}
    return calls, lambda: right(x.double(), w.double())


def _step(loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Returns the gradients of rows and head."""
    x, w = (t.detach().requires_grad_() for t in (x, w))
    gradients: tuple[Tensor, ...] = torch.autograd.grad(loss(x, w), (x, w))
    return gradients


def memory_needed(case: HeadCase) -> int:
    """Returns an estimate of the bytes of all logits and of the head, those of the check included."""
    logits, weight = case.rows * case.vocabulary, case.vocabulary * case.hidden
    return logits * 20 + weight * (int(TORCH_DTYPES[case.dtype].itemsize) * 3 + 8)


_ALGORITHMS = {"argmax": "linear_top_k", "top-k": "linear_top_k", "sample": "linear"}

BENCHMARK = Benchmark(
    layout=comparison(
        HeadRow,
        (HeadRow.section,),
        {
            "operation": lambda r: r.operation,
            "model": lambda r: r.model,
            "V": lambda r: str(r.vocabulary),
            "H": lambda r: str(r.hidden),
            "dtype": lambda r: r.dtype,
            "weights": lambda r: r.weights,
            "rows": lambda r: str(r.rows),
        },
        {"GFLOP/s": lambda r: number(r.gflops)},
    ),
    title="the head of a language model on {}: median and quartiles",
    method=METHOD,
    algorithm=lambda case: _ALGORITHMS.get(case.operation, "linear_cross_entropy"),
    memory_needed=memory_needed,
    problem=_problem,
    notes=_NOTES,
    picture=Picture(
        panel=lambda row: row.operation,
        ticks={
            "rows": lambda row: str(row.rows),
            "dtype": lambda row: row.dtype,
            "weights": lambda row: row.weights,
            "model": lambda row: row.model if row.model != "-" else f"{row.vocabulary}x{row.hidden}",
        },
    ),
)
