"""Runs torch's own tests of flex_attention on xeflash: `python tests/suites/flex_attention.py SOURCE`.

SOURCE is a checkout of PyTorch, a git directory of it, or its file test_flex_attention.py. What the tests compile runs on
xeflash instead, and what xeflash refuses goes on to torch. Each call's result is compared with torch's own in float64, by
the rule of tests/tolerance.py; gradients are compared by the tests, also those that torch itself has on GPUs only. Tests
that read what torch's compiler made are left out. The last lines count functions: a score_mod, a mask_mod, or both.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import itertools
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as module
from torch._higher_order_ops.flex_attention import flex_attention as operator
from xeflash.integrations import flex
from xeflash.integrations.flex import route
from xeflash.selftest.reference import to_float64
from xeflash.selftest.tolerance import compare, limit_of, limit_of_probability, size_of_lse

FILE = "test/inductor/test_flex_attention.py"
# Words of tests that look at the compiler, at other libraries' kernels, or at a GPU.
ABOUT_COMPILERS = (
    r"run_and_get_code|CompileCounter|FileCheck|ExpectedInline|_hop\b|higher_order|kernel_mod|counters|RecordGraphs"
    r"|TritonTemplate|make_fx|FakeTensor|cuda\.|FLASH|LOGGING|_COMPILE_DEBUG|_WARNINGS_SHOWN|inline_asm|gradcheck|device=[01]\b"
)
MOST_SCORES = 1 << 25  # of a call that is compared
theirs = module.flex_attention

backend: str | None = None  # of torch.compile, where the tests use it
depth = 0  # compiled functions that run, whose calls are for xeflash
right: set[str] = set()
wrong: dict[str, str] = {}
refused: dict[str, str] = {}
left_out: set[str] = set()
gone_on: set[str] = set()  # tests of which torch ran a call
stricter: set[str] = set()  # tests that want an error of torch's compiler
test = ""


def compiled(function: Any = None, **options: Any) -> Any:
    """torch.compile in the tests: calls of flex_attention within `function` are for xeflash."""
    if function is None:
        return functools.partial(compiled, **options)
    if backend is not None:
        kept = {name: x for name, x in options.items() if name in ("dynamic", "fullgraph")}
        function = torch.compile(function, backend=backend, **kept)

    @functools.wraps(function)
    def run(*arguments: Any, **named: Any) -> Any:
        with _on():
            return function(*arguments, **named)

    return run


@contextlib.contextmanager
def _on() -> Iterator[None]:
    global depth
    depth += 1
    try:
        with flex.use_xeflash():
            yield
    finally:
        depth -= 1


def attend(*arguments: Any, **named: Any) -> Any:
    """flex_attention in the tests."""
    if not depth:
        return theirs(*arguments, **named)
    call = inspect.signature(theirs).bind(*arguments, **named).arguments
    name, (q, k) = name_of(call), (call["query"], call["key"])
    if not q.is_nested and q.numel() // q.shape[-1] * k.shape[-2] > MOST_SCORES:
        pytest.skip("its scores are too many to compare")
    try:
        result = flex.flex_attention(*arguments, **named)
    except NotImplementedError as why:
        result = theirs(*arguments, **named)  # which may refuse it, too
        refused.setdefault(name, str(why).partition("\n")[0])
        gone_on.add(test)
        return result
    with contextlib.suppress(IndexError):  # of torch, which has no result where a table is read past its end
        finding = check(call, result)
        right.add(name)
        if finding is not None:
            wrong.setdefault(name, finding)
    return result


def check(call: dict[str, Any], result: Any) -> str | None:
    """Compares a result with torch's own in float64; returns what is wrong."""
    more = {name: x for name, x in call.items() if name not in ("query", "key", "value", "return_lse", "return_aux")}
    qkv = [call[name].detach() for name in ("query", "key", "value")]
    with torch.no_grad():
        want = [to_float64(x) for x in theirs(*(x.double() for x in qkv), **more, return_lse=True)]
        other = [to_float64(x) for x in theirs(*qkv, **more, return_lse=True)]
    out, lse = result if isinstance(result, tuple) else (result, None)
    lse = getattr(lse, "lse", lse)
    dtype = str(qkv[0].dtype).removeprefix("torch.")
    limit = limit_of(want[0], other[0], dtype, float(qkv[2].abs().max()))
    findings = [compare("out", to_float64(out.detach()), want[0], limit)]
    if lse is not None:
        limit = limit_of(want[1], other[1], "float32", size_of_lse(want[1], qkv[1].shape[2]))
        findings.append(compare("lse", to_float64(lse.detach()), want[1], limit + limit_of_probability(dtype)))
    return next((f"{dtype} {finding}" for finding in findings if not finding.ok), None)


def name_of(call: dict[str, Any]) -> str:
    """Names the functions of a call, and those that they call in their turn."""
    functions = call.get("score_mod"), getattr(call.get("block_mask"), "mask_mod", None)
    names = [_name(f) for f in functions if f not in (None, module._identity, module.noop_mask)]
    return " with ".join(n for n in names if n not in ("_identity", "noop_mask")) or "no function"


def _name(function: Any) -> str:
    while not hasattr(function, "__qualname__"):  # a wrapper of torch's, or functools.partial
        inner = getattr(function, "fn", getattr(function, "func", None))
        if inner is None:
            return type(function).__qualname__.replace("<locals>.", "")
        function = inner
    inside = []
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty cell
            found = cell.cell_contents
            inside += [_name(f) for f in (found if isinstance(found, tuple) else (found,)) if inspect.isfunction(f)]
    called = f"({', '.join(inside)})" if inside else ""
    return function.__qualname__.replace("<locals>.", "") + called


# ---- as a plugin of pytest ------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend", help="compile by torch.compile and this, on xeflash, and compare as the tests do only"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Puts `attend` in place of torch's function, which has gradients on CPUs here, for the reference."""
    global backend
    backend = config.getoption("--backend")
    if backend is None:
        module.flex_attention = attend
    ours, of_torch = (operator.py_kernels[torch._C.DispatchKey.Autograd], route._by_torch["kernel"])
    operator.py_kernels[torch._C.DispatchKey.Autograd] = lambda *call: (ours if depth and backend else of_torch)(*call)
    operator._dispatch_cache.clear()
    module._validate_device = lambda *tensors: None


def _source(item: pytest.Item) -> str:
    return inspect.getsource(inspect.unwrap(item.function))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves tests out; the others, which have no parameters in pytest's eyes, take turns by their functions."""
    left_out.update(item.nodeid for item in items if re.search(ABOUT_COMPILERS, _source(item)))
    turns: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.nodeid not in left_out:
            turns.setdefault(inspect.unwrap(item.function).__qualname__, []).append(item)
    items[:] = [item for turn in itertools.zip_longest(*turns.values()) for item in turn if item is not None]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[Any]:
    """Runs a test; one that compiles nothing is all for xeflash."""
    global test
    test, before, by_torch = item.nodeid, len(wrong), flex.calls().torch
    with contextlib.nullcontext() if re.search("compile|run_", _source(item)) else _on():
        result = yield
    if flex.calls().torch > by_torch:
        gone_on.add(test)
    assert len(wrong) == before, list(wrong.items())[-1]
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    report = yield
    if report.failed and re.search("not raised|Unexpected success", str(report.longrepr)):
        stricter.add(item.nodeid)
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, "torch's compiler refuses this")
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    write: Callable[[str], None] = terminalreporter.write_line
    for name, finding in wrong.items():
        write(f"wrong: {name}: {finding}")
    for name, why in refused.items():
        write(f"refused: {name}: {why}")
    write(f"{len(left_out)} tests of compilers and GPUs left out, torch ran calls of {len(gone_on)} tests,")
    write(f"{len(stricter)} tests want an error of torch's compiler where xeflash has a result")
    if backend is not None:
        write(f"calls of compiled functions, as they were traced: {flex.calls()}")
        return
    good = right - wrong.keys() - refused.keys()
    write(f"functions: {len(good)} right, {len(refused.keys() - wrong.keys())} refused, {len(wrong)} wrong")


# ---- as a program ---------------------------------------------------------------------------------


def for_xeflash(text: str) -> str:
    """torch's test file that calls `compiled`, and has the tests of gradients for CPUs, too."""
    for pattern, instead in (
        (r"torch\.compile\b", "_compiled"),
        (r"\nimport torch\n", "\nimport torch\nfrom flex_attention import compiled as _compiled\n"),
        (r"assertEqual\((\w+)\.frame_count, \d+\)", r"assertEqual(\1.frame_count, 0)"),
        (r"@(skip_on_cpu|supports_learnable_bias)\n\s*", ""),
        (r"SubstringSet\(\[", 'SubstringSet(["cpu", '),
        (r'else "cuda",\)', 'else "cpu",)'),
    ):
        text, count = re.subn(pattern, instead, text)
        if not count:
            raise SystemExit(f"test_flex_attention.py must be as that of torch 2.13, found nothing like {pattern}")
    return text


def main() -> int:
    import sampled
    from flash_attention import text_of

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    options, words = parser.parse_known_args()
    source = options.source
    text = source.read_text() if source.is_file() else text_of(source, FILE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_flex_attention.py").write_text(for_xeflash(text))
        path = (Path(__file__).parent,)
        return bool(sampled.run(folder, "-p", "flex_attention", "test_flex_attention.py", *words, path=path))


if __name__ == "__main__":
    raise SystemExit(main())
