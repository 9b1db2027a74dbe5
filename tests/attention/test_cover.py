"""The default set has no hole: what kernels can be compiled for is reached, on the CPU and on each simulated device.

The elements are made from the tables that cases are made of. On the CPU each algorithm meets each type with each choice,
and each feature meets each other one. On each simulated device each algorithm meets each choice and each type; on one of
them at least, each type with each choice that kernels are compiled for.
"""

import os
from dataclasses import replace
from itertools import combinations, product

import axes
import pytest
import test_backward
import test_chunks
import test_documents
import test_gpu
import test_gpu_decode
import test_kv_cache
import test_pairwise
import test_probabilities
import test_splits
import torch
from arrays import ArraysOf
from cover import met
from dealing import DEVICES, device_of
from described import kernels_of
from kernel_list import CORES, listed, listed_name
from run_report import kernels_of_this_test
from specs import run
from xeflash import _core
from xeflash.selftest.attention.drawn import draw

DTYPES = ("fp32", "bf16", "fp16")
BOTH = (False, True)


def gradients_of(case):
    """What a case of gradients says; wherever the diagonal begins, its window is one."""
    return vars(case) | {"window": case.window.removesuffix("-tl")}


# ---- the CPU ------------------------------------------------------------------------------------

CHANGES = ("plain", "softcap", "alibi", "mask", "bias", "bias32", "snippet", "dropout")  # of scores
OF_CALLS = {
    "variant": CHANGES,
    "window": axes.WINDOWS,
    "heads": axes.HEADS,
    "entry": axes.ENTRIES,
    "layout": test_pairwise.LAYOUTS,
    "scale": axes.SCALES,
    "broadcast": axes.BROADCASTS,
    "sinks": BOTH,
    "lse": BOTH,
    "slopes": ("h", "bh"),
    "kind": ("torch", "numpy"),
    "batch": (1, 2),
}
OF_CACHES = {
    "place": test_kv_cache.PLACES,
    "format": ("", *axes.FORMATS),
    "scales": ("number", "array"),
    "variant": test_kv_cache.CHOICES["variant"],
    "window": axes.CACHE_WINDOWS,
    "splits": (0, 1),  # more are for one query
    "rotary": ("", "pairs", "halves"),
    "new": BOTH,
    "sinks": BOTH,
    "lse": BOTH,
    "length": ("array", "number"),
    "kind": ("torch", "numpy"),
}
OF_GRADIENTS = {
    "variant": ("plain", "softcap", "alibi", "bias", "curve", "mask", "dropout"),
    "window": axes.WINDOWS[:5],
    "heads": axes.HEADS,
    "entry": ("attention", "func", "varlen"),
    "broadcast": test_backward.BROADCASTS,
    "sinks": BOTH,
    "dlse": BOTH,
    "layout": test_backward.SMALL_LAYOUTS,
}
# (what its cases say, its default cases, the choices that each type meets)
ON_THE_CPU = {
    "forward": (test_pairwise.choices_of, test_pairwise.DEFAULT, OF_CALLS),
    "decode": (
        test_pairwise.choices_of,
        test_pairwise.DEFAULT,
        {"variant": CHANGES[:-1], "window": axes.WINDOWS, "sinks": BOTH},
    ),
    "forward on caches": (test_kv_cache.choices_of, test_kv_cache.DEFAULT, OF_CACHES),
    "decode on caches": (
        test_kv_cache.choices_of,
        test_kv_cache.DEFAULT,
        OF_CACHES | {"splits": test_kv_cache.CHOICES["splits"]},
    ),
    "backward": (gradients_of, test_backward.DEFAULT, OF_GRADIENTS),
}
# Features of which each meets each value of the others.
PAIRS = {
    "forward": {name: OF_CALLS[name] for name in ("window", "heads", "sinks")}
    | {"variant": [change for change in CHANGES if change != "bias"]}  # which is one of another type
    | {"dims": ("usual", "odd", "wide", "two"), "rows": ("one", "few", "many")},
    "decode on caches": {name: OF_CACHES[name] for name in ("place", "format", "variant")} | {"rows": (1, 5)},
    "backward": {name: OF_GRADIENTS[name] for name in ("variant", "window", "sinks", "dlse")},
}


def reached(name):
    """(type, choice, value) of the cases of one algorithm, and pairs of (choice, value) of all."""
    choices_of, default, _ = ON_THE_CPU[name]
    types, pairs = set(), set()
    for case in default:
        choices = choices_of(case)
        values = [(choice, value) for choice in choices for value in met(choices, choice)]
        pairs |= {frozenset(pair) for pair in combinations(values, 2)}
        if choices.get("algorithm", name) == name.partition(" ")[0]:
            types |= {(choices["dtype"], *value) for value in values}
    return types, pairs


@pytest.mark.parametrize("name", ON_THE_CPU)
def test_each_type_meets_each_choice_on_the_cpu(name):
    table = ON_THE_CPU[name][2]
    wanted = {(dtype, choice, value) for dtype in DTYPES for choice, values in table.items() for value in values}
    assert not sorted(map(str, wanted - reached(name)[0]))


@pytest.mark.parametrize("name", PAIRS)
def test_each_feature_meets_each_other_one_on_the_cpu(name):
    table = PAIRS[name]
    wanted = {frozenset(((a, x), (b, y))) for a, b in combinations(table, 2) for x, y in product(table[a], table[b])}
    assert not sorted(sorted(map(str, pair)) for pair in wanted - reached(name)[1])


# ---- simulated devices --------------------------------------------------------------------------


WINDOWS_OF_DECODING = ("full", "31,5", "50,-1", "causal-tl")
OF_GPU_CALLS = {name: OF_CALLS[name] for name in ("variant", "window", "entry", "scale", "broadcast", "sinks", "lse")}
# (default cases, what one reaches, the choices that each device meets, those that each type meets somewhere)
ON_GPUS = {
    "forward": (
        test_gpu.PAIRWISE,
        vars,
        OF_GPU_CALLS | {"heads": axes.FEW_HEADS, "layout": ("bshd", "bhsd", "sliced", "odd"), "batch": (1, 2)},
        ("variant",),
    ),
    "decode": (
        [case for _, case in test_gpu_decode.CASES],
        vars,
        {"variant": CHANGES[:-2], "window": WINDOWS_OF_DECODING}
        | {"heads": axes.DECODE_HEADS, "sinks": BOTH, "lse": BOTH},
        ("variant",),
    ),
    "caches": (
        test_kv_cache.GPU_CASES,
        test_kv_cache.choices_of,
        {name: OF_CACHES[name] for name in ("place", "format", "window", "rotary", "new", "sinks", "lse", "length")}
        | {"rows": (1, 5), "splits": (0, 1, 2, 3)},
        ("place", "format"),
    ),
    "backward": (
        test_backward.DEFAULT_ON_GPU,
        gradients_of,
        {name: OF_GRADIENTS[name] for name in ("variant", "window", "entry", "sinks", "dlse")},
        ("variant",),
    ),
}


@pytest.mark.parametrize("name", ON_GPUS)
def test_each_device_meets_each_choice_and_each_type(name):
    default, choices_of, table, _ = ON_GPUS[name]
    found = {
        (device_of(name, {"case": case}), choice, value)
        for case in default
        for choice in (*table, "dtype")
        for value in met(choices_of(case), choice)
    }
    wanted = {(device, choice, value) for device in DEVICES for choice, values in table.items() for value in values}
    wanted |= {(device, "dtype", dtype) for device in DEVICES for dtype in DTYPES}
    assert not sorted(map(str, wanted - found))


@pytest.mark.parametrize("module", [test_gpu, test_gpu_decode, test_kv_cache, test_backward])
def test_no_default_case_of_a_gpu_is_left_to_the_wide_set(module):
    """By the names that conftest.py looks for."""
    assert not hasattr(module, "GPU_TESTS")


@pytest.mark.parametrize("name", ON_GPUS)
def test_each_type_meets_what_is_compiled_on_some_device(name):
    default, choices_of, table, compiled = ON_GPUS[name]
    found = {
        (choices_of(case)["dtype"], choice, value)
        for case in default
        for choice in compiled
        for value in met(choices_of(case), choice)
    }
    wanted = {(dtype, choice, value) for dtype in DTYPES for choice in compiled for value in table[choice]}
    assert not sorted(map(str, wanted - found))


# ---- kernels ------------------------------------------------------------------------------------


def default_specs(cases):
    """Those that are not marked."""
    return [case for case in cases if not hasattr(case, "marks")]


# The Specs of the default set by their file: on the CPU; on GPUs with the number of splits that the test asks for.
OF_FILES = {
    "attention/test_pairwise.py": (test_pairwise.DEFAULT, []),
    "attention/test_kv_cache.py": (
        test_kv_cache.DEFAULT + test_kv_cache.PACKED,
        [(0, case) for case in test_kv_cache.GPU_CASES],
    ),
    "attention/test_backward.py": (test_backward.DEFAULT, [(0, case) for case in test_backward.DEFAULT_ON_GPU]),
    "attention/test_gpu.py": ([], [(0, case) for case in test_gpu.PAIRWISE]),
    "attention/test_gpu_decode.py": ([], test_gpu_decode.CASES),
    "attention/test_chunks.py": (default_specs(test_chunks.OF_GRADIENTS), [(0, case) for case in test_chunks.ON_GPU]),
    "attention/test_documents.py": (
        default_specs(test_documents.OF_GRADIENTS),
        [(0, case) for case in test_documents.ON_GPU],
    ),
    "attention/test_probabilities.py": ([replace(case, probs=True) for case in test_probabilities.CASES[:2]], []),
    "attention/test_splits.py": (test_splits.DENSE[::2] + test_splits.CACHED, []),
}


@pytest.mark.parametrize("file", OF_FILES)
def test_kernels_of_default_specs_are_listed_for_their_file(file):
    """They are told without running: a Spec that asks for another one is seen here, on whatever device it would run."""
    on_cpu, on_gpus = OF_FILES[file]
    asked = {name for case in on_cpu for name in kernels_of(case)}
    for splits, case in on_gpus:
        asked.update(kernels_of(case, device_of(f"tests/{file}::test", {"case": case}), splits))
    assert not sorted(name for name in asked if file not in listed().get(name, ()))


ONE_OF_EACH = [test_pairwise.DEFAULT[i] for i in (0, 40, 80)] + test_kv_cache.DEFAULT[::12] + test_kv_cache.PACKED[:1]
ONE_OF_EACH += test_backward.DEFAULT[::16] + [replace(test_probabilities.CASES[0], probs=True)]


@pytest.mark.skipif(os.cpu_count() != CORES, reason=f"the list is for {CORES} cores")
@pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda case: case.id)
def test_a_call_asks_for_the_kernels_that_its_spec_tells(case):
    arrays, drawn = ArraysOf(case), draw(case)
    if case.grad:
        run(case)
    else:
        drawn.call(drawn.put(arrays))
    asked = set(map(listed_name, kernels_of_this_test()))
    assert asked == set(kernels_of(case, _core.arch_of(torch.empty(1), "test", "cpu")))
