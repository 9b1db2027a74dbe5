"""The benchmark of a language model's head: losses, the largest logits, and tokens that are drawn, beside torch."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import xeflash
from xeflash.bench import eager, measure, plot
from xeflash.bench.formats import Layout
from xeflash.bench.forms import TORCH_DTYPES
from xeflash.bench.linear.cases import GROUP
from xeflash.bench.linear.weights import quantise
from xeflash.bench.llm.presets import PRESETS
from xeflash.bench.measure import Options, run_case
from xeflash.bench.rows import Result, Timed

OF_TRAINING = ("loss", "train", "train-workspace", "log-prob")
TOP_K, TOP_P = 50, 0.9
WORKSPACE = 256 << 20  # bytes
ROUNDING = 1e-5
METHOD = [
    "a head (V, H) of normal numbers times 3 H^-1/2 on rows of normal numbers; wall time of a call on ready inputs; "
    "medians (minimum, interquartile range) in ms; rounds are interleaved in rotating order",
    "loss: cross entropy of random tokens, its mean; train: that and gradients of rows and head, by logits "
    "made again, train-workspace: in the forward pass with workspace=256 MiB; log-prob: of given "
    f"tokens; top-k: {TOP_K} logits; sample: temperature 0.8, top_k {TOP_K}, top_p {TOP_P}, a seed per row",
    "eager = torch's operations on all logits, in fp32 from there on, weights in the type of rows in the place of "
    "quantised ones; chunked = F.linear_cross_entropy, where torch has it; ratios: the median over rounds of torch's "
    "time / ours",
    "max |error| of losses, probabilities and logits against fp64 must be at most 2 x that of eager torch in the same "
    "dtype + 1e-5 of the largest; tokens of argmax and sample are not judged here, but by the tests",
    "peak memory: the most bytes that torch's allocator has given out during a call, above what it had given before; "
    "on CPUs without the scratch of libraries",
]


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
        """Short name for the progress bar and for messages."""
        quantised = "" if self.weights == "same" else f" {self.weights}"
        return f"{self.operation} {self.rows} x {self.hidden} x {self.vocabulary} {self.dtype}{quantised}"


@dataclass(frozen=True)
class HeadRow(Timed, HeadCase):
    """A case, our time, torch's, and the check. Times are milliseconds."""

    eager_median_ms: float | None = None
    eager_min_ms: float | None = None
    eager_iqr_ms: float | None = None
    eager_ratio: float | None = None
    chunked_median_ms: float | None = None
    chunked_ratio: float | None = None
    max_error: float | None = None
    allowed_error: float | None = None
    peak_bytes: int | None = None
    eager_peak_bytes: int | None = None

    @property
    def section(self) -> str:
        """There is one table."""
        return "lm-head"


_CASE: eager.Cells = {
    "operation": lambda r: r.operation,
    "model": lambda r: r.model,
    "V": lambda r: str(r.vocabulary),
    "H": lambda r: str(r.hidden),
    "dtype": lambda r: r.dtype,
    "weights": lambda r: r.weights,
    "rows": lambda r: str(r.rows),
}
LAYOUT = Layout(
    HeadRow,
    {"lm-head": eager.cells(_CASE, "chunked")},
    tuple(_CASE),
    ("error / allowed", "chunked ms"),
    "times: median (minimum, interquartile range); ratios: torch's time / ours, the median over rounds",
)


def heads_of(models: Sequence[str]) -> list[tuple[str, int, int]]:
    """(model, vocabulary, hidden) of presets."""
    return [(name, PRESETS[name].options["vocab_size"], PRESETS[name].options["hidden_size"]) for name in models]


def expand(
    operations: Sequence[str],
    heads: Sequence[tuple[str, int, int]],
    dtypes: Sequence[str],
    weights: Sequence[str],
    rows: Sequence[int],
) -> list[HeadCase]:
    """Return every case of the choices; only tokens are drawn from quantised heads."""
    choices = itertools.product(operations, heads, dtypes, weights, rows)
    return [HeadCase(o, *h, d, w, n) for o, h, d, w, n in choices if w == "same" or o == "sample"]


def _drawn(logits: Tensor, generator: torch.Generator) -> Tensor:
    """What programs do without a fused sampler."""
    z = logits.float() / 0.8
    z = z.masked_fill(z < z.topk(TOP_K).values[:, -1:], -torch.inf)
    ordered, order = z.sort()
    ordered = ordered.masked_fill(ordered.softmax(-1).cumsum(-1) <= 1 - TOP_P, -torch.inf)
    picked = torch.multinomial(ordered.softmax(-1), 1, generator=generator)
    return order.gather(1, picked).flatten()


def _wide(z: Tensor) -> Tensor:
    """In fp32 at least."""
    return z.to(torch.promote_types(z.dtype, torch.float32))


def problem(case: HeadCase, options: Options) -> eager.Problem:
    """Return the ways to compute a case."""
    generator = torch.Generator(device=options.device).manual_seed(options.seed)
    normal = functools.partial(torch.randn, generator=generator, device=options.device)
    dtype = TORCH_DTYPES[case.dtype]
    x, w = normal(case.rows, case.hidden).to(dtype), (normal(case.vocabulary, case.hidden)).to(dtype)
    w *= 3 * case.hidden**-0.5
    y = torch.randint(case.vocabulary, (case.rows,), generator=generator, device=options.device)
    if case.operation in ("loss", "train", "train-workspace"):
        return _of_losses(case.operation, x, w, y)
    head: dict[str, Any] = {"weight": w}
    if case.weights != "same":
        quantised = quantise(w, case.weights, GROUP)
        w, head = quantised.numbers(), quantised.arguments()
    limits: dict[str, Any] = {"temperature": 0.8, "top_k": TOP_K, "top_p": TOP_P}
    limits["seed"] = torch.arange(case.rows, device=options.device)
    forms: dict[str, tuple[eager.Call, Callable[[Tensor], Tensor]]] = {
        "log-prob": (
            lambda: xeflash.linear_log_prob(x, w, y),
            lambda z: _wide(z).log_softmax(-1).gather(1, y[:, None]).flatten(),
        ),
        "argmax": (lambda: xeflash.linear_argmax(x, w), lambda z: z.argmax(-1)),
        "top-k": (lambda: xeflash.linear_top_k(x, w, TOP_K)[0], lambda z: _wide(z).topk(TOP_K).values),
        "sample": (lambda: xeflash.linear_sample(x, **head, **limits), lambda z: _drawn(z, generator)),
    }
    ours, of_logits = forms[case.operation]
    right = None if case.operation in ("argmax", "sample") else lambda: of_logits(x.double() @ w.double().mT)
    return eager.Problem({"xeflash": ours, "eager": lambda: of_logits(x @ w.mT)}, right, ROUNDING)


def _of_losses(operation: str, x: Tensor, w: Tensor, y: Tensor) -> eager.Problem:
    more: dict[str, Any] = {"workspace": WORKSPACE} if operation == "train-workspace" else {}

    def by_torch(x: Tensor, w: Tensor) -> Tensor:
        return F.cross_entropy(_wide(x @ w.mT), y)

    losses: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "xeflash": lambda x, w: xeflash.linear_cross_entropy(x, w, y, **more),
        "eager": by_torch,
        "right": by_torch,
    }
    if hasattr(torch.nn, "LinearCrossEntropyOptions"):
        chunks = torch.nn.LinearCrossEntropyOptions()
        losses["chunked"] = lambda x, w: F.linear_cross_entropy(x, w, y, options=chunks)
    if operation != "loss":
        losses = {name: functools.partial(_step, loss) for name, loss in losses.items()}
    right = losses.pop("right")
    calls: dict[str, eager.Call] = {name: functools.partial(loss, x, w) for name, loss in losses.items()}
    return eager.Problem(calls, lambda: eager.first(right(x.double(), w.double())), ROUNDING)


def _step(loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """The gradients of rows and head."""
    x, w = (t.detach().requires_grad_() for t in (x, w))
    gradients: tuple[Tensor, ...] = torch.autograd.grad(loss(x, w), (x, w))
    return gradients


def run(cases: Sequence[HeadCase], options: Options) -> Iterator[Result]:
    """Yield the results one by one, so that an interrupted run keeps what it has."""

    def measured(row: HeadRow) -> Result:
        return eager.measured(row, problem(row, options), options, ("chunked", "F.linear_cross_entropy"))

    for case in cases:
        row = HeadRow(**dataclasses.asdict(case))
        logits, weight = case.rows * case.vocabulary, case.vocabulary * case.hidden
        needed = logits * 20 + weight * (TORCH_DTYPES[case.dtype].itemsize * 3 + 8)
        yield run_case(row, needed, options.device, functools.partial(measured, row))


def header(options: Options) -> dict[str, object]:
    """Return the block above the rows: environment, method."""
    return measure.header(options.device, METHOD)


def figure(results: Sequence[Result], title: str) -> Any:
    """Return the picture as matplotlib's Figure: a panel per operation, times of each form by case."""
    return plot.of_forms(
        results,
        title,
        panel=lambda row: row.operation,
        forms=("xeflash", "eager", "chunked"),
        height=lambda _, ms: ms,
        unit="ms",
        tick=lambda row: f"{row.rows} rows\n{row.dtype} {row.weights}\n{row.model}",
    )
