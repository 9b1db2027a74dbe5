"""Cases of linear layers: a `Case` is one layer on some rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xeflash.bench.llm.presets import PRESETS

MODELS = tuple(name for name, preset in PRESETS.items() if "num_local_experts" not in preset.options)
WEIGHTS = ("same", "int8", "int4")
DEFAULT_MODELS = ("llama-3-8b",)
DEFAULT_ROWS = (1, 2, 4, 8, 16, 64)
GROUP = 128


@dataclass(frozen=True)
class Layer:
    """A weight (outputs, inputs), and which layers of a model have this size; a model is "-" if there is none."""

    model: str
    layer: str
    outputs: int
    inputs: int


@dataclass(frozen=True)
class Case:
    """A layer with weights of the type of x, or quantised ones, on so many rows."""

    model: str
    layer: str
    outputs: int
    inputs: int
    dtype: str
    weights: str
    rows: int
    group: int = GROUP  # inputs that share a scale

    @property
    def label(self) -> str:
        """Returns a short name for the progress bar and for messages."""
        return f"{self.model} {self.layer} {self.outputs}x{self.inputs} {self.dtype} {self.weights} rows {self.rows}"


def layers_of(model: str) -> list[Layer]:
    """Returns the linear layers of one decoder layer of a preset, those of the same size together."""
    options = PRESETS[model].options
    hidden, intermediate = options["hidden_size"], options["intermediate_size"]
    heads, heads_k = options["num_attention_heads"], options["num_key_value_heads"]
    dim = options.get("head_dim", hidden // heads)
    sizes = {"q": (heads * dim, hidden), "k": (heads_k * dim, hidden), "v": (heads_k * dim, hidden)}
    sizes |= {
        "o": (hidden, heads * dim),
        "gate": (intermediate, hidden),
        "up": (intermediate, hidden),
        "down": (hidden, intermediate),
    }
    return [
        Layer(model, "+".join(name for name in sizes if sizes[name] == size), *size)
        for size in dict.fromkeys(sizes.values())
    ]


def expand(
    layers: Iterable[Layer], dtypes: Iterable[str], weights: Iterable[str], rows: Sequence[int], group: int = GROUP
) -> list[Case]:
    """Returns every case once, all of a layer and a kind of weights together."""
    choices = itertools.product(dtypes, weights, layers, rows)
    return list(dict.fromkeys(Case(x.model, x.layer, x.outputs, x.inputs, d, w, n, group) for d, w, x, n in choices))
