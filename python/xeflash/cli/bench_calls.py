"""The benchmarks of one call beside torch's: attention, decode-attention, linear, matmul-softmax and lm-head."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from xeflash.bench import cases as grids
from xeflash.bench.cases import DTYPES, HEAD_OPERATIONS, Case
from xeflash.bench.linear import cases as layers
from xeflash.bench.llm.presets import PRESETS
from xeflash.cli.arguments import converter
from xeflash.cli.bench_shared import LISTS, SIZES, add_lists, add_measuring, add_output, guarded, report
from xeflash.sim import DEVICES

if TYPE_CHECKING:
    from xeflash.bench.runner import Benchmark

T = TypeVar("T")
_COMPARE = ("torch", "none")
_BOTH = "off,on"
_BLOCK_SIZE = 128


def add_parsers(commands: Any) -> None:
    """Adds the subcommands."""
    _add_attention(commands)
    _add_linear(commands)
    _add_softmax(commands)
    _add_head(commands)


def _measure(
    arguments: argparse.Namespace, benchmark: Benchmark, cases: Sequence[Any], rounds: int, **options: Any
) -> int:
    """Runs the cases and writes; 0 if every one was right, 1 if not."""
    from xeflash.bench import plot
    from xeflash.bench.rows import with_peaks
    from xeflash.bench.runner import Options, choose_device

    chosen = Options(choose_device(arguments.device), rounds, arguments.seed, **options)
    meter = None if getattr(arguments, "no_peak", True) else benchmark.meter(cases, chosen.device)
    return report(
        arguments,
        benchmark.run(cases, chosen, meter),
        [case.label for case in cases],
        benchmark.layout,
        header=lambda results: benchmark.header(chosen, results, meter.peaks if meter else None),
        figure=lambda results, device: plot.figure(benchmark.picture, results, benchmark.title.format(device)),
        finish=lambda results: with_peaks(results, meter.beside()) if meter else results,
    )


def _add_attention(commands: Any) -> None:
    for name, phases, text in (
        ("attention", grids.PHASES, "xeflash.attention against torch SDPA over a grid of shapes"),
        ("decode-attention", ("decode",), "the same for one query token against a KV cache"),
    ):
        parser = commands.add_parser(
            name,
            help=text,
            description=f"Check and time xeflash.attention against torch SDPA. {LISTS} What is not given comes "
            "from the preset."
            + (" The phase train measures the peak memory of torch's allocator, too." * (len(phases) > 1)),
        )
        grid = parser.add_argument_group("cases")
        presets = [name for name, preset in grids.PRESETS.items() if set(preset) & set(phases)]
        grid.add_argument(
            "--preset",
            choices=presets,
            default="quick",
            help="quick or full, one of an image model, or card: 12 calls whose times on cards others have published"
            if len(phases) > 1
            else None,
        )
        add_lists(
            grid,
            dtype=(DTYPES, None, ""),
            batch=(SIZES, None, ""),
            heads=(SIZES, None, "query heads"),
            kv_heads=(SIZES, None, "they must divide the query heads"),
            head_dim=(SIZES, None, ""),
            kv_len=(SIZES, None, "keys of a cache"),
            kv_dtype=(grids.KV_DTYPES, None, "types of a cache; default: that of the queries"),
        )
        if len(phases) > 1:
            text = "verify: a tree of guesses on a cache, beside our causal call; train: forward pass and backward; "
            add_lists(grid, phase=(phases, None, f"{text}default: prefill, and decode if the preset has it"))
            add_lists(grid, tree=(SIZES, None, "nodes of the trees that are verified; default: 8,32"))
            words = (
                "topk:SHARE,...: each row of blocks lists that share of the key blocks, drawn at random; a simulated "
            )
            words += "device counts the work, which must follow the share"
            grid.add_argument("--block-mask", metavar="LIST", type=converter(grids.parse_shares), help=words)
            sizes = f"rows and keys of a block, a multiple of {grids.LEAST_BLOCK}; default: {_BLOCK_SIZE}"
            grid.add_argument("--block-size", metavar="N", type=converter(grids.parse_block_size), help=sizes)
            add_lists(grid, seq=(SIZES, None, "lengths of all phases that have no cache"))
            causal = "mask of all phases that have no cache; default: causal, but for image models"
            grid.add_argument("--causal", action=argparse.BooleanOptionalAction, help=causal)
        else:
            parser.set_defaults(phase=phases, seq=None, causal=None, tree=None, block_mask=None, block_size=None)
        add_measuring(
            parser,
            None,
            compare=_COMPARE,
            text="times that each call is sampled; default: 9, or 21 of the preset full",
            simulated=tuple(f"sim:{name}" for name in DEVICES) if len(phases) > 1 else (),
        ).add_argument(
            "--tuned",
            choices=("off", "on", _BOTH),
            help="sizes by the tables alone, by a tuning, or each beside the other in the place of torch, in processes "
            "that take turns; default: as XEFLASH_TUNED says",
        )
        add_output(parser)
        parser.set_defaults(run=functools.partial(guarded, measure=_attention), compare=None)


def _refuse_unused(arguments: argparse.Namespace) -> None:
    """Raises if an option is given that none of the phases has, or a phase or a mask that the preset does not have."""
    phases, preset = set(arguments.phase), grids.PRESETS[arguments.preset]
    if missing := phases - set(preset):
        allowed = ", ".join(preset)
        raise ValueError(f"bench: --phase must be of {allowed} with --preset {arguments.preset}, got {min(missing)}")
    if arguments.causal and any(grid.keys for phase in phases for grid in preset[phase]):
        raise ValueError(
            f"bench: --causal must be left out with --preset {arguments.preset}, where not all "
            "calls have as many keys as queries"
        )
    cached = phases & set(grids.ON_CACHE)
    unused = {"kv_len": not cached, "kv_dtype": not cached, "tree": "verify" not in phases}
    unused |= dict.fromkeys(("seq", "causal"), cached == phases)
    unused["block_mask"] = bool(cached)
    for name, refused in unused.items():
        value = getattr(arguments, name)
        if refused and value is not None:
            words = f"--{'' if value else 'no-'}causal" if name == "causal" else f"--{name.replace('_', '-')}"
            got = "" if name == "causal" else f", got {','.join(map(str, value))}"
            raise ValueError(f"bench: {words} must be left out with --phase {','.join(arguments.phase)}{got}")
    if arguments.block_mask and arguments.causal:
        raise ValueError("bench: --causal must be left out with --block-mask")
    if arguments.block_size is not None and not arguments.block_mask:
        raise ValueError(f"bench: --block-size needs --block-mask, got {arguments.block_size} alone")


def _chosen(given: T | None, preset: T) -> T:
    return preset if given is None else given


def cases_of(arguments: argparse.Namespace) -> list[Case]:
    """Returns the preset's cases with what the command line gives put in its place."""
    preset = grids.PRESETS[arguments.preset]
    usual = ("prefill",) if arguments.block_mask else grids.DEFAULT_PHASES
    arguments.phase = arguments.phase or tuple(phase for phase in usual if phase in preset)
    _refuse_unused(arguments)
    cases: list[Case] = []
    causal = False if arguments.block_mask else arguments.causal
    for phase in arguments.phase:
        lengths = arguments.kv_len if phase in grids.ON_CACHE else arguments.seq
        for one in preset[phase]:
            grid = dataclasses.replace(
                one,
                dtypes=_chosen(arguments.dtype, one.dtypes),
                batches=_chosen(arguments.batch, one.batches),
                heads=_chosen(arguments.heads, one.heads),
                kv_heads=_chosen(arguments.kv_heads, one.kv_heads if arguments.heads is None else ()),
                head_dims=_chosen(arguments.head_dim, one.head_dims),
                lengths=_chosen(lengths, one.lengths),
                causal=_chosen(causal, one.causal),
                trees=_chosen(arguments.tree, one.trees),
                shares=_chosen(arguments.block_mask, one.shares),
                block_size=arguments.block_size or _BLOCK_SIZE,
                kv_dtypes=_chosen(arguments.kv_dtype, one.kv_dtypes),
            )
            cases += grids.expand(phase, grid)
    if not any(case.kv_dtype for case in cases) and arguments.kv_dtype:
        raise ValueError(
            "bench: --kv-dtype must be of 8 bits, that of --dtype, or k8v4 with 16 bits and a multiple of 64 as "
            f"--head-dim, got {','.join(arguments.kv_dtype)}"
        )
    return list(dict.fromkeys(cases))


def _attention(arguments: argparse.Namespace) -> int:
    if arguments.device.startswith("sim:"):
        from xeflash.cli.bench_counted import counted

        return counted(arguments, cases_of)
    rounds, cases = _chosen(arguments.rounds, grids.PRESET_ROUNDS.get(arguments.preset, 9)), cases_of(arguments)
    if arguments.tuned == _BOTH:
        if arguments.compare == "torch":
            raise ValueError(f"bench: --compare must be none with --tuned {_BOTH}, got torch")
        from xeflash.cli.bench_tuned import benchmark

        return _measure(arguments, benchmark(), cases, rounds)
    if arguments.tuned == "off":
        os.environ["XEFLASH_TUNED"] = "off"
    elif arguments.tuned == "on" and os.environ.get("XEFLASH_TUNED") == "off":
        del os.environ["XEFLASH_TUNED"]
    from xeflash.bench.attention import BENCHMARK

    return _measure(arguments, BENCHMARK, cases, rounds, compare_torch=arguments.compare != "none")


def _add_linear(commands: Any) -> None:
    parser = commands.add_parser(
        "linear",
        help="xeflash.linear against torch's on the linear layers of models, for few rows",
        description="Check and time xeflash.linear on the layers of a model's decoder layer, or on given sizes, beside "
        "torch's F.linear and its own operators for weights of 8 and 4 bits. Weights come from memory: each call takes "
        f"another copy of them. {LISTS}",
    )
    cases = parser.add_argument_group("cases")
    add_lists(
        cases,
        model=(layers.MODELS, None, f"default: {','.join(layers.DEFAULT_MODELS)}"),
        outputs=(SIZES, None, "sizes in the place of a model's, with --inputs"),
        inputs=(SIZES, None, "as many as --outputs"),
        rows=(SIZES, layers.DEFAULT_ROWS, ""),
        dtype=(DTYPES, ("bf16",), "the type of x"),
        weights=(layers.WEIGHTS, layers.WEIGHTS, "same is the type of x"),
    )
    cases.add_argument(
        "--group", type=int, choices=(32, 64, 128), default=layers.GROUP, help="inputs that share a scale"
    )
    how = add_measuring(parser, 9, compare=_COMPARE)
    how.add_argument("--compile", action="store_true", help="time F.linear by torch.compile, too")
    add_output(parser)
    parser.set_defaults(run=functools.partial(guarded, measure=_linear))


def layers_given(arguments: argparse.Namespace) -> list[layers.Layer]:
    """Returns the layers of the models, or those of the sizes that the command line gives."""
    outputs, inputs = arguments.outputs or (), arguments.inputs or ()
    if len(outputs) != len(inputs):
        raise ValueError(f"bench: --outputs and --inputs must be as many, got {len(outputs)} and {len(inputs)}")
    if outputs and arguments.model:
        raise ValueError(f"bench: --model must be left out with --outputs, got {','.join(arguments.model)}")
    if outputs:
        return [layers.Layer("-", "-", *size) for size in zip(outputs, inputs, strict=True)]
    return [layer for model in arguments.model or layers.DEFAULT_MODELS for layer in layers.layers_of(model)]


def _linear(arguments: argparse.Namespace) -> int:
    given = layers_given(arguments)
    cases = layers.expand(given, arguments.dtype, arguments.weights, arguments.rows, arguments.group)
    from xeflash.bench.linear.benchmark import BENCHMARK

    options = {"compare_torch": arguments.compare == "torch", "compiled": arguments.compile}
    return _measure(arguments, BENCHMARK, cases, arguments.rounds, **options)


def _add_softmax(commands: Any) -> None:
    parser = commands.add_parser(
        "matmul-softmax",
        help="xeflash.matmul_softmax against torch: a product of matrices whose rows become their softmax",
        description="Check and time xeflash.matmul_softmax against eager torch and torch.compile, and measure the peak "
        "memory of torch's allocator. Without sizes: 1024 x 4096 with 64, 128 and 1024 inputs, and 10,000 calls of "
        f"16 x 16 with 40. {LISTS}",
    )
    add_lists(
        parser.add_argument_group("cases"),
        dtype=(DTYPES, ("fp32", "bf16"), ""),
        rows=(SIZES, None, "M"),
        columns=(SIZES, None, "N"),
        inputs=(SIZES, None, "K"),
    )
    add_measuring(parser, 15, peaks=False)
    add_output(parser)
    parser.set_defaults(run=functools.partial(guarded, measure=_softmax))


def _softmax(arguments: argparse.Namespace) -> int:
    from xeflash.bench.matmul_softmax import BENCHMARK, expand

    cases = expand(arguments.dtype, arguments.rows, arguments.columns, arguments.inputs)
    return _measure(arguments, BENCHMARK, cases, arguments.rounds)


def _add_head(commands: Any) -> None:
    parser = commands.add_parser(
        "lm-head",
        help="losses, log-probabilities, the largest logits and drawn tokens of a language model's head, against torch",
        description="Check and time xeflash.linear_cross_entropy, linear_log_prob, linear_argmax, linear_top_k and "
        "linear_sample against eager torch and torch's chunked F.linear_cross_entropy, and measure the peak memory of "
        f"torch's allocator. {LISTS}",
    )
    add_lists(
        parser.add_argument_group("cases"),
        operation=(HEAD_OPERATIONS, HEAD_OPERATIONS, ""),
        model=(tuple(PRESETS), ("small",), "whose heads"),
        vocabulary=(SIZES, None, "in the place of a model's"),
        hidden=(SIZES, None, "in the place of a model's"),
        dtype=(DTYPES, ("fp32", "bf16"), ""),
        weights=(layers.WEIGHTS, ("same",), "of the head that tokens are drawn from; same is the dtype"),
        rows=(SIZES, None, "default: 1,8 and 512 for losses"),
    )
    add_measuring(parser, 5, peaks=False)
    add_output(parser)
    parser.set_defaults(run=functools.partial(guarded, measure=_head))


def _head(arguments: argparse.Namespace) -> int:
    from xeflash.bench.lm_head import BENCHMARK, OF_TRAINING, expand, heads_of

    heads = heads_of(arguments.model)
    if arguments.vocabulary or arguments.hidden:
        vocabularies = arguments.vocabulary or [v for _, v, _ in heads]
        heads = [("-", v, h) for v in vocabularies for h in arguments.hidden or [h for _, _, h in heads]]
    cases = []
    for operation in arguments.operation:
        rows = arguments.rows or ((512,) if operation in OF_TRAINING else (1, 8))
        cases += expand((operation,), heads, arguments.dtype, arguments.weights, rows)
    return _measure(arguments, BENCHMARK, cases, arguments.rounds)
