"""Tensors whose memory does not hold their values as a pointer would read them: right, or refused by name."""

import subprocess
import sys

import pytest
import torch
import xeflash
from torch._subclasses.fake_tensor import FakeTensorMode

H, S, D = 2, 5, 64


def tensor(*shape):
    return torch.randn(*shape or (1, H, S, D))


def lazy(x):
    """The values of x, in memory that holds their negations."""
    view = torch._neg_view(-x)
    assert view.is_neg() and view.equal(x)
    return view


Q, K, V, MASK = tensor(), tensor(), tensor(), tensor(S, S)


@pytest.mark.parametrize("name", ["query", "key", "value", "attn_mask", "sinks", "alibi_slopes", "captures"])
def test_a_negated_view_has_its_own_values(name):
    more = {"attn_mask": MASK, "sinks": tensor(H), "alibi_slopes": tensor(H)}
    arrays = {"query": Q, "key": K, "value": V} | ({name: more[name]} if name in more else {})
    if name == "captures":
        near, others = tensor(S), {"a": 0.5, "n": 2}
        arrays |= {"score_mod": "s * a + near[k_idx / n]", "captures": {"near": near, **others}}
        negated = {"captures": {"near": lazy(near), **others}}
    else:
        negated = {name: lazy(arrays[name])}
    assert xeflash.attention(**arrays | negated).equal(xeflash.attention(**arrays))


def test_new_keys_of_a_cache_may_be_negated_views():
    caches = [torch.zeros(1, 32, H, D) for _ in range(2)]
    k = tensor(1, 3, H, D)
    xeflash.flash_attn_with_kvcache(k, *caches, lazy(k), k, cache_seqlens=0)
    assert caches[0][:, :3].equal(k)


def test_nothing_is_written_into_a_negated_view():
    for out in (lazy(Q), lazy(Q).expand(1, H, S, D)):
        with pytest.raises(ValueError, match="^attention: out must be writable"):
            xeflash.attention(Q, K, V, out=out)
    cache = torch.zeros(1, 32, H, D)
    with pytest.raises(ValueError, match="^flash_attn_with_kvcache: v_cache must be writable"):
        xeflash.flash_attn_with_kvcache(
            *([tensor(1, 3, H, D), cache, lazy(cache)] + [tensor(1, 3, H, D)] * 2), cache_seqlens=0
        )


def test_the_operators_resolve_negated_views():
    want = xeflash.attention(Q, K, V)
    assert torch.ops.xeflash.attention(lazy(Q), lazy(K), lazy(V))[0].equal(want)


def test_an_expanded_array_is_read_as_it_is():
    one = tensor(1, 1, S, D)
    assert xeflash.attention(one.expand(1, H, S, D), K, V).equal(xeflash.attention(one.repeat(1, H, 1, 1), K, V))


class Subclass(torch.Tensor):
    pass


def test_a_subclass_and_a_parameter_are_tensors():
    want = xeflash.attention(Q, K, V)
    assert xeflash.attention(torch.nn.Parameter(Q, requires_grad=False), K, V).equal(want)
    assert xeflash.attention(Q.as_subclass(Subclass), K, V).as_subclass(torch.Tensor).equal(want)


REFUSED = {
    "zero tensor": lambda: torch._efficientzerotensor((1, H, S, D)),
    "complex": lambda: torch.randn(1, H, S, D, dtype=torch.complex64).conj(),
    "sparse": lambda: tensor().to_sparse(),
    "sparse rows": lambda: tensor().to_sparse_csr(),
    "quantised": lambda: torch.quantize_per_tensor(tensor(), 0.1, 0, torch.qint8),
    "mkldnn": lambda: tensor().to_mkldnn(),
    "meta": lambda: tensor().to("meta"),
    "nested": lambda: torch.nested.nested_tensor([tensor(H, S, D)]),
    "a list": lambda: tensor().tolist(),
    "text": lambda: "query",
    "nothing": lambda: None,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["query", "key", "attn_mask"])
@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_values_in_memory_is_refused_by_name(kind, name):
    if kind == "nothing" and name == "attn_mask":
        return
    arrays = {"query": Q, "key": K, "value": V, "attn_mask": None, name: REFUSED[kind]()}
    with pytest.raises(TypeError, match=rf"^attention: {name} must "):
        xeflash.attention(**arrays)


def test_fake_tensors_give_fake_results():
    with FakeTensorMode():
        q, k, v = tensor(), tensor(), tensor()
        out, lse = xeflash.attention(q, k, v, return_lse=True)
    assert out.shape == (1, H, S, D) and lse.shape == (1, H, S)


def test_fake_tensors_obey_the_rules():
    with FakeTensorMode():
        q, k, v = tensor(), tensor(), tensor()
        meta = torch.empty(1, H, S, D, device="meta")
        with pytest.raises(TypeError, match="^attention: key must have the dtype of query"):
            xeflash.attention(q, k.half(), v)
        with pytest.raises(ValueError, match="^attention: key must have the 4 dimensions of query, got 3"):
            torch.ops.xeflash.attention(q, k[0], v)
        with pytest.raises(ValueError, match="^attention: key.head_dim must equal query.head_dim"):
            xeflash.attention(q, k[..., :32], v)
        with pytest.raises(Exception, match="device"):
            xeflash.attention(q, meta, v)


@pytest.mark.parametrize("name", ["attn_mask", "sinks"])
def test_a_meta_tensor_among_others_is_refused_by_the_operator(name):
    value = torch.zeros((S, S) if name == "attn_mask" else H, device="meta")
    with pytest.raises((ValueError, TypeError), match=f"^attention: {name} must be .* on .*meta"):
        torch.ops.xeflash.attention(Q, K, V, **{name: value})


def test_vmap_is_a_loop_over_calls():
    many = tensor(3, 1, H, S, D)
    got = torch.vmap(lambda x: xeflash.attention(x, x, x))(many)
    assert got.equal(torch.stack([xeflash.attention(x, x, x) for x in many]))


@pytest.mark.parametrize("others", ["torch", "numpy"])
def test_an_array_that_must_not_require_grad_is_named(others):
    arrays = {"query": Q, "key": K, "value": V, "attn_mask": MASK, "sinks": tensor(H)}
    if others == "numpy":
        arrays = {key: x.numpy() for key, x in arrays.items()}
    out = torch.empty(1, H, S, D, requires_grad=True)
    with pytest.raises(NotImplementedError, match="^attention: out must not require grad"):
        xeflash.attention(**arrays, out=out, score_mod="s + near[k_idx]", captures={"near": tensor(S)})


@pytest.mark.parametrize("name", ["scale", "softcap"])
@pytest.mark.parametrize("function", ["attention", "flash_attn_func", "flash_attn_with_kvcache"])
def test_a_number_that_requires_grad_is_named(function, name):
    name = "softmax_scale" if name == "scale" and function != "attention" else name
    number = torch.tensor(0.5, requires_grad=True)
    with pytest.raises(NotImplementedError, match=f"^{function}: {name} must not require grad"):
        getattr(xeflash, function)(Q, K, V, **{name: number})
    with torch.no_grad():
        getattr(xeflash, function)(Q, K, V, **{name: 0.5})


@pytest.mark.parametrize("name", ["query", "value", "attn_mask", "sinks"])
def test_arrays_of_numpy_have_no_gradients(name):
    arrays = {"query": Q, "key": K, "value": V, "attn_mask": MASK, "sinks": tensor(H)}
    wanting = arrays[name].clone().requires_grad_()
    arrays = {key: x.numpy() for key, x in arrays.items()} | {name: wanting}
    with pytest.raises(TypeError, match="^attention: (query|key) must be a torch tensor"):
        xeflash.attention(**arrays)


@pytest.mark.parametrize(
    "imports",
    [
        "import torch, xeflash",
        "import xeflash, torch",
        # asking whether torch is there imports nothing
        "import importlib.util, sys, xeflash; importlib.util.find_spec('torch'); assert 'torch' not in sys.modules\n"
        "import torch; assert type(torch.__spec__.loader).__name__ == 'SourceFileLoader'\n"
        "assert not vars(torch.__spec__.loader).get('exec_module')\n"
        "assert not any('AfterImport' in type(finder).__name__ for finder in sys.meta_path)",
    ],
)
def test_operators_are_there_after_the_imports(imports):
    program = f"{imports}\ntorch.ops.xeflash.attention; torch.ops.xeflash.merge_states"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
