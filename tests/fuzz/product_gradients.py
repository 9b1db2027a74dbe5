"""Cases of gradients of products: a forward pass of a public function, then autograd's, against float64."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch
import xeflash
from products.heads import IGNORED, check_gradients
from products.softmaxes import moved_logarithms, reference, rounded_scores
from xeflash.selftest.tolerance import SCORES, compare, limit_of

from . import heads, softmax
from . import linear as products_of_rows
from .case import Case, passing_mode
from .draw import Draw

Tensors = dict[str, torch.Tensor]


def on_torch(draw: Draw) -> None:
    """Gradients are of torch's tensors."""
    draw.kind, draw.mixed = "xpu" if draw.on_gpu else "torch", False


def gradients_case(
    draw: Draw, function: str, arguments: dict[str, Any], learned: list[str], results: Any, check: Callable[[Any], None]
) -> Case:
    """`results`: of a call, those that have gradients, and what comes into them by the name of an argument."""
    into = [name for name in ("dout", "dloss", "dlse") if name in arguments]
    mode = passing_mode if draw.chance(0.2) else contextlib.nullcontext

    def call(**given: Any) -> Any:
        slopes = [given.pop(name) for name in into]
        leaves = [given[name].detach().requires_grad_() for name in learned]
        with torch.enable_grad(), mode():
            outputs = results(getattr(xeflash, function)(**given | dict(zip(learned, leaves, strict=True))))
        first, again = (torch.autograd.grad(outputs, leaves, slopes, retain_graph=True) for _ in range(2))
        return first, again

    def check_both(result: Any) -> None:
        first, again = ([x.cpu() for x in gradients] for gradients in result)
        for name, one, other in zip(learned, first, again, strict=True):
            like = arguments[name]
            assert (one.shape, one.dtype) == (like.shape, like.dtype), f"d{name} is {one.dtype} {list(one.shape)}"
            assert torch.equal(one.nan_to_num(), other.nan_to_num()), f"d{name} is another one the second time"
        check(first)

    return Case(f"gradients of {function}", arguments, check_both, call=call)


def judge(name: str, got: torch.Tensor, want: torch.Tensor, other: torch.Tensor, size: Any, off: Any = 0.0) -> None:
    """`size`: of the sums; `off`: how far their terms may move them."""
    if got.numel():
        largest, moved = (float(torch.as_tensor(x).max()) for x in (size, off))
        rounded = other.to(got.dtype).double().numpy()
        limit = limit_of(want.numpy(), rounded, str(got.dtype)[6:], largest, moved)
        finding = compare(f"d{name}", got.double().numpy(), want.numpy(), limit)
        assert finding.ok, str(finding)


# ---- matmul_softmax -----------------------------------------------------------------------------


def matmul_softmax(draw: Draw) -> Case:
    on_torch(draw)
    asked, arguments = softmax.operands(draw, empty_rows=False)
    dtype, shape = arguments["a"].dtype, softmax.shape_of(arguments)
    arguments["dout"] = draw.array(draw.numbers(*shape).to(dtype))
    learned = some_of(draw, arguments, "a", "b", "bias")

    def check(found: Any) -> None:
        judge_softmax(asked, arguments, dict(zip(learned, found, strict=True)))

    return gradients_case(draw, "matmul_softmax", arguments, learned, lambda out: [out], check)


def some_of(draw: Draw, arguments: dict[str, Any], *names: str) -> list[str]:
    """Arguments that gradients are asked for: one at least."""
    there = [name for name in names if name in arguments]
    return [name for name in there if draw.chance(0.7)] or [draw.of(*there)]


def judge_softmax(asked: softmax.Softmax, arguments: dict[str, Any], found: Tensors) -> None:
    names = [name for name in ("a", "b", "bias") if name in arguments]
    values = [arguments[name].values() for name in names]
    dout = arguments["dout"].values()

    def gradients(work: torch.dtype) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of a, b and the bias, and of scores; the result and the scores."""
        leaves = [x.to(work).requires_grad_() for x in values]
        bias = leaves[2] if "bias" in names else None
        out, scores = reference(asked, leaves[0], leaves[1], bias, work)
        *wanted, ds = torch.autograd.grad(out, [*leaves, scores], dout.to(work))
        return wanted, ds, out.detach(), scores.detach()

    if not dout.numel():
        for name, got in found.items():
            assert not got.any(), f"d{name} of no rows is not 0"
        return
    want, ds, out, scores = gradients(torch.float64)
    others = gradients(torch.float32)[0]
    a, b, bias = softmax.values_of(arguments)
    moved = moved_logarithms(scores, rounded_scores(asked, a, b, bias, drawn=True))
    off = off_slopes(out, scores, ds, dout.double(), moved, asked.log, a.dtype)
    ds = ds.abs()
    rows = (b.mT if asked.b_layout == "kn" else b).double().abs()
    kn, scale = asked.b_layout == "kn", abs(asked.scale)

    def into(slopes: torch.Tensor) -> dict[str, torch.Tensor]:
        """What comes of gradients of scores, without their signs."""
        b_terms = scale * (slopes.mT @ a.double().abs()).sum_to_size(rows.shape)
        a_terms = scale * (slopes @ rows).sum_to_size(a.shape)
        return {"a": a_terms, "b": b_terms.mT if kn else b_terms} | (
            {} if bias is None else {"bias": slopes.sum_to_size(bias.shape)}
        )

    # Products are rounded to the type before they are scaled, and added up over a batch.
    unit = torch.finfo(a.dtype).eps
    sizes, offs = into(ds), into(off + 2 * unit * ds)
    terms = 1 + math.sqrt(max(*dout.shape[-2:], dout.numel() // math.prod(dout.shape[-2:])))
    for name, exact, other in zip(names, want, others, strict=True):
        if name in found:
            judge(name, found[name], exact, other, sizes[name] * terms, offs[name])


def off_slopes(
    out: torch.Tensor, scores: torch.Tensor, ds: torch.Tensor, dout: torch.Tensor, moved: torch.Tensor, log: bool,
    dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """How far gradients of scores may be off that are made of a rounded result, and rounded."""
    info = torch.finfo(dtype)
    p, least = scores.softmax(-1), info.tiny * info.eps
    if log:
        out_error = out.abs().nan_to_num(posinf=0.0) * info.eps + moved
        off = p * out_error * dout.sum(-1, keepdim=True).abs() + p * SCORES * dout.abs().sum(-1, keepdim=True)
    else:
        of_p = p * (info.eps + moved) + least
        mean = (p * dout.abs()).sum(-1, keepdim=True)
        off = of_p * (dout.abs() + mean) + p * (of_p * dout.abs()).sum(-1, keepdim=True)
    return off + ds.abs() * info.eps + least


# ---- heads --------------------------------------------------------------------------------------


def linear_cross_entropy(draw: Draw) -> Case:
    on_torch(draw)
    arrays, words = heads.draw_head(draw)
    words |= heads.draw_losses(draw)
    ignored = IGNORED if words.get("ignore_index") is None else words["ignore_index"]
    arguments = arrays | {"target": heads.draw_target(draw, arrays, ignored)} | words
    head = heads.head_of(draw, arguments)
    if head.reduction == "mean" and not bool((heads.targets_of(arguments) != IGNORED).any()):
        arguments["reduction"] = "sum"
    elif head.reduction == "mean" and draw.chance(0.3):
        arguments["divisor"] = draw.of(7, 2.5)
    in_forward = draw.chance(0.3) and arguments.get("reduction", "mean") != "none"
    if in_forward:
        arguments["workspace"] = draw.of(heads.WORKSPACE, 1 << 20)
    head, lead = heads.head_of(draw, arguments), arrays["input"].shape[:-1]
    arguments["dloss"] = draw.array(draw.normal(*(lead if head.reduction == "none" else ())))
    if not in_forward and draw.chance(0.4):
        arguments["dlse"] = draw.array(draw.normal(*lead))
        arguments["return_lse"] = True

    def check(found: Any) -> None:
        dloss, dlse = (
            None if name not in arguments else arguments[name].values().reshape(-1).double()
            for name in ("dloss", "dlse")
        )
        check_head(head, found, arguments, heads.targets_of(arguments), dloss, dlse)

    learned = [name for name in heads.LEARNED if name in arrays]
    results = lambda found: list(found) if "dlse" in arguments else [found]  # noqa: E731
    return gradients_case(draw, "linear_cross_entropy", arguments, learned, results, check)


def linear_log_prob(draw: Draw) -> Case:
    on_torch(draw)
    arrays, words = heads.draw_head(draw)
    arguments = arrays | {"target": heads.draw_target(draw, arrays, None)} | words
    head = heads.head_of(draw, arguments)._replace(reduction="none")
    arguments["dout"] = draw.array(draw.normal(*arrays["input"].shape[:-1]))

    def check(found: Any) -> None:
        target = arguments["target"].values().reshape(-1).long()
        check_head(head, found, arguments, target, -arguments["dout"].values().reshape(-1).double(), None)

    learned = [name for name in heads.LEARNED if name in arrays]
    return gradients_case(draw, "linear_log_prob", arguments, learned, lambda out: [out], check)


def check_head(
    head: heads.Head, found: Any, arguments: dict[str, Any], target: torch.Tensor, dloss: Any, dlse: Any
) -> None:
    if not head.rows:
        assert not any(bool(x.any()) for x in found), "gradients of no rows are not 0"
        return
    x, w, bias = heads.rows_of(arguments)
    check_gradients(head, [found[0].reshape(x.shape), *found[1:]], x, w, target, bias, dloss, dlse)


# ---- linear -------------------------------------------------------------------------------------


def linear(draw: Draw) -> Case:
    on_torch(draw)
    inner = products_of_rows.linear(draw)
    arguments = {name: x for name, x in inner.arguments.items() if name != "order"}
    kind = products_of_rows.kind_of(arguments)
    x = arguments["x"]
    dtype, outputs, inputs = x.dtype, arguments["weight"].shape[0], x.shape[-1]
    arguments["dout"] = draw.array(draw.numbers(*x.shape[:-1], outputs).to(dtype))
    learned = some_of(draw, arguments, "x", *(["weight"] if kind == "same" else []), "bias")

    def check(found: Any) -> None:
        count = math.prod(x.shape[:-1])
        rows = x.values().reshape(count, inputs).double()
        weight = products_of_rows.numbers_of(arguments, kind, inputs)
        dout = arguments["dout"].values().reshape(count, outputs).double()

        def gradients(work: torch.dtype) -> Tensors:
            x_terms = dout.to(work) @ weight.to(work)
            return {
                "x": x_terms.reshape(x.shape),
                "weight": dout.to(work).mT @ rows.to(work),
                "bias": dout.to(work).sum(0),
            }

        sizes = {"x": dout.abs() @ weight.abs(), "weight": dout.abs().mT @ rows.abs(), "bias": dout.abs().sum(0)}
        want, others = gradients(torch.float64), gradients(torch.float32)
        terms = {"x": outputs, "weight": count, "bias": count}
        for name, got in zip(learned, found, strict=True):
            judge(name, got, want[name], others[name], sizes[name] * (1 + math.sqrt(terms[name])))

    return gradients_case(draw, "linear", arguments, learned, lambda out: [out], check)
