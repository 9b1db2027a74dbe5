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
from xeflash.bench import memory, plot
from xeflash.bench.check import ERRORS, said
from xeflash.bench.environ import available_memory, described, environment, too_large
from xeflash.bench.formats import Layout
from xeflash.bench.forms import TORCH_DTYPES, synchronizer
from xeflash.bench.linear.cases import GROUP
from xeflash.bench.linear.weights import quantise
from xeflash.bench.llm.presets import PRESETS
from xeflash.bench.numbers import number, ratio, size, times
from xeflash.bench.rows import Result
from xeflash.bench.stats import median_of_ratios, summarize
from xeflash.bench.timing import first_call, interleave

OF_TRAINING = ("loss", "train", "train-workspace", "log-prob")
TOP_K, TOP_P = 50, 0.9
WORKSPACE = 256 << 20  # bytes
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
_NAMES = ("xeflash", "eager", "chunked")


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
class HeadRow:
    """A case, our time, torch's, and the check. Times are milliseconds."""

    operation: str
    model: str
    vocabulary: int
    hidden: int
    dtype: str
    weights: str
    rows: int
    status: str
    note: str = ""
    rounds: int | None = None
    first_call_ms: float | None = None
    median_ms: float | None = None
    min_ms: float | None = None
    iqr_ms: float | None = None
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

    @property
    def case(self) -> HeadCase:
        """The problem of this row."""
        return HeadCase(**{field.name: getattr(self, field.name) for field in dataclasses.fields(HeadCase)})


@dataclass(frozen=True)
class Options:
    """How to measure."""

    device: str = "cpu"
    rounds: int = 5
    seed: int = 0


_CELLS: dict[str, Callable[[Any], str]] = {
    "operation": lambda r: r.operation,
    "model": lambda r: r.model,
    "V": lambda r: str(r.vocabulary),
    "H": lambda r: str(r.hidden),
    "dtype": lambda r: r.dtype,
    "weights": lambda r: r.weights,
    "rows": lambda r: str(r.rows),
    "xeflash ms": lambda r: times(r.median_ms, r.min_ms, r.iqr_ms) if r.status == "ok" else f"{r.status}: {r.note}",
    "eager ms": lambda r: times(r.eager_median_ms, r.eager_min_ms, r.eager_iqr_ms),
    "of eager": lambda r: ratio(r.eager_ratio),
    "chunked ms": lambda r: number(r.chunked_median_ms),
    "of chunked": lambda r: ratio(r.chunked_ratio),
    "error / allowed": lambda r: "-" if r.max_error is None else f"{r.max_error:.1e} / {r.allowed_error:.1e}",
    "peak memory": lambda r: size(r.peak_bytes),
    "of eager's": lambda r: size(r.eager_peak_bytes),
}
LAYOUT = Layout(
    HeadRow,
    {"lm-head": _CELLS},
    ("operation", "model", "V", "H", "dtype", "weights", "rows"),
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


@dataclass(frozen=True)
class _Forms:
    """A case's ways to compute, and what is right in fp64: None for tokens that are drawn."""

    calls: dict[str, Callable[[], Any]]
    right: Callable[[], Tensor] | None


def _drawn(logits: Tensor, generator: torch.Generator) -> Tensor:
    """What programs do without a fused sampler."""
    z = logits.float() / 0.8
    z = z.masked_fill(z < z.topk(TOP_K).values[:, -1:], -torch.inf)
    ordered, order = z.sort()
    ordered = ordered.masked_fill(ordered.softmax(-1).cumsum(-1) <= 1 - TOP_P, -torch.inf)
    picked = torch.multinomial(ordered.softmax(-1), 1, generator=generator)
    return order.gather(1, picked).flatten()


def forms(case: HeadCase, options: Options) -> _Forms:
    """Return the ways to compute a case, by name."""
    generator = torch.Generator(device=options.device).manual_seed(options.seed)
    normal = functools.partial(torch.randn, generator=generator, device=options.device)
    dtype = TORCH_DTYPES[case.dtype]
    x, w = normal(case.rows, case.hidden).to(dtype), (normal(case.vocabulary, case.hidden)).to(dtype)
    w *= 3 * case.hidden**-0.5
    y = torch.randint(case.vocabulary, (case.rows,), generator=generator, device=options.device)
    calls: dict[str, Callable[[], Any]]
    if case.operation in ("loss", "train", "train-workspace"):
        more: dict[str, Any] = {"workspace": WORKSPACE} if case.operation == "train-workspace" else {}
        losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            "xeflash": lambda x, w: xeflash.linear_cross_entropy(x, w, y, **more),
            "eager": lambda x, w: F.cross_entropy((x @ w.mT).float(), y),
        }
        if hasattr(torch.nn, "LinearCrossEntropyOptions"):
            losses["chunked"] = functools.partial(_chunked, y)
        if case.operation != "loss":
            return _Forms(
                {name: functools.partial(_step, loss, x, w) for name, loss in losses.items()},
                lambda: _step(lambda x, w: F.cross_entropy(x @ w.mT, y), x.double(), w.double())[1],
            )
        calls = {name: functools.partial(loss, x, w) for name, loss in losses.items()}
        return _Forms(calls, lambda: F.cross_entropy(x.double() @ w.double().mT, y))
    if case.operation == "log-prob":
        calls = {
            "xeflash": lambda: xeflash.linear_log_prob(x, w, y),
            "eager": lambda: (x @ w.mT).float().log_softmax(-1).gather(1, y[:, None]).flatten(),
        }
        return _Forms(calls, lambda: (x.double() @ w.double().mT).log_softmax(-1).gather(1, y[:, None]).flatten())
    if case.operation == "argmax":
        calls = {
            "xeflash": lambda: xeflash.linear_argmax(x, w),
            "eager": lambda: (x @ w.mT).argmax(-1),
        }
        return _Forms(calls, None)
    if case.operation == "top-k":
        calls = {
            "xeflash": lambda: xeflash.linear_top_k(x, w, TOP_K)[0],
            "eager": lambda: (x @ w.mT).float().topk(TOP_K).values,
        }
        return _Forms(calls, lambda: (x.double() @ w.double().mT).topk(TOP_K).values)
    seeds = torch.arange(case.rows, device=options.device)
    head: dict[str, Any] = {"weight": w}
    if case.weights != "same":
        quantised = quantise(w, case.weights, GROUP)
        w, head = quantised.numbers(), quantised.arguments()
    limits: dict[str, Any] = {"temperature": 0.8, "top_k": TOP_K, "top_p": TOP_P}
    calls = {
        "xeflash": lambda: xeflash.linear_sample(x, **head, seed=seeds, **limits),
        "eager": lambda: _drawn(x @ w.mT, generator),
    }
    return _Forms(calls, None)


def _chunked(y: Tensor, x: Tensor, w: Tensor) -> Tensor:
    loss: Tensor = F.linear_cross_entropy(x, w, y, options=torch.nn.LinearCrossEntropyOptions())
    return loss


def _step(loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False), torch.enable_grad():
        x, w = (t.clone().requires_grad_() if t.is_inference() else t.detach().requires_grad_() for t in (x, w))
        dx, dw = torch.autograd.grad(loss(x, w), (x, w))
    return dw, dx


def _errors(forms: _Forms) -> tuple[float, float] | None:
    """(ours, allowed); None where tokens are drawn, which tests judge."""
    if forms.right is None:
        return None
    found = {name: forms.calls[name]() for name in ("xeflash", "eager")}
    found = {name: x[1] if isinstance(x, tuple) else x for name, x in found.items()}
    want = forms.right().double()
    off = {name: float((x.double() - want).abs().max()) for name, x in found.items()}
    return off["xeflash"], 2 * off["eager"] + 1e-5 * float(want.abs().max())


def _run_case(case: HeadCase, options: Options) -> Result:
    found = forms(case, options)
    synchronize, calls = synchronizer(options.device), found.calls
    row = HeadRow(
        **dataclasses.asdict(case), status="ok", first_call_ms=1e3 * first_call(calls["xeflash"], synchronize)
    )
    if errors := _errors(found):
        row = dataclasses.replace(row, max_error=errors[0], allowed_error=errors[1])
        if not errors[0] <= errors[1]:
            note = f"wrong result: error {errors[0]:.2e}, allowed {errors[1]:.2e}"
            return Result(dataclasses.replace(row, status="failed", note=note))
    if "chunked" in calls:
        try:
            calls["chunked"]()
        except Exception as error:  # its operator is new
            del calls["chunked"]
            row = dataclasses.replace(row, note=f"F.linear_cross_entropy: {type(error).__name__}")
    samples = {
        name: tuple(1e3 * seconds for seconds in series)
        for name, series in interleave(calls, options.rounds, synchronize).items()
    }
    ours, eager = summarize(samples["xeflash"]), summarize(samples["eager"])
    chunked = samples.get("chunked")
    row = dataclasses.replace(
        row,
        rounds=len(samples["xeflash"]),
        median_ms=ours.median,
        min_ms=ours.minimum,
        iqr_ms=ours.iqr,
        eager_median_ms=eager.median,
        eager_min_ms=eager.minimum,
        eager_iqr_ms=eager.iqr,
        eager_ratio=median_of_ratios(samples["eager"], samples["xeflash"]),
        chunked_median_ms=summarize(chunked).median if chunked else None,
        chunked_ratio=median_of_ratios(chunked, samples["xeflash"]) if chunked else None,
        peak_bytes=memory.peak_of(calls["xeflash"], options.device),
        eager_peak_bytes=memory.peak_of(calls["eager"], options.device),
    )
    return Result(row, samples)


def run(cases: Sequence[HeadCase], options: Options) -> Iterator[Result]:
    """Yield the results one by one, so that an interrupted run keeps what it has."""
    for case in cases:
        element = TORCH_DTYPES[case.dtype].itemsize
        logits, weight = case.rows * case.vocabulary, case.vocabulary * case.hidden
        needed = logits * 20 + weight * (element * 3 + 8)
        if note := too_large(needed, available_memory(options.device)):
            yield Result(HeadRow(**dataclasses.asdict(case), status="skipped", note=note))
            continue
        try:
            yield _run_case(case, options)
        except ERRORS as error:
            yield Result(HeadRow(**dataclasses.asdict(case), status="failed", note=said(error)))


def header(options: Options) -> dict[str, object]:
    """Return the block above the rows: environment, method."""
    return {
        "environment": {**environment(), "device": described(options.device), "torch_threads": torch.get_num_threads()},
        "method": METHOD,
    }


def figure(results: Sequence[Result], title: str) -> Any:
    """Return the picture as matplotlib's Figure: a panel per operation, times of each form by case."""
    return plot.of_forms(
        results,
        title,
        panel=lambda row: row.operation,
        forms=_NAMES,
        height=lambda _, ms: ms,
        unit="ms",
        tick=lambda row: f"{row.rows} rows\n{row.dtype} {row.weights}\n{row.model}",
    )
