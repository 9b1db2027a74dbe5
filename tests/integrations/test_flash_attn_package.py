"""The module flash_attn: what it has, the command that installs and removes it, and who finds it."""

import os
import shutil
import subprocess
import sys
from importlib import metadata

import pytest
import torch
from xeflash.call.schema import BSHD
from xeflash.cli import main
from xeflash.integrations import _flash_attn_package as package
from xeflash.integrations.flash_attn import bert_padding, flash_attn_3, flash_attn_func, flash_attn_varlen_func
from xeflash.integrations.flash_attn import flash_attn_interface as two
from xeflash.integrations.flash_attn.layers import rotary

# ---- installing and removing --------------------------------------------------------------------


def run(capsys, *arguments):
    code = main(["flash-attn", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out + err


def everything_in(folder):
    return sorted(str(x.relative_to(folder)) for x in folder.rglob("*"))


def test_is_installed_and_removed_whole(tmp_path, capsys):
    (tmp_path / "flash_attn_other.py").write_text("")
    before = everything_in(tmp_path)
    assert run(capsys, "status", "--target", tmp_path) == (1, "there is no flash_attn\n")
    for _ in range(2):  # over its own, too
        code, said = run(capsys, "install", "--target", tmp_path)
        assert code == 0 and package.VERSION in said
    code, said = run(capsys, "status", "--target", tmp_path)
    assert code == 0 and said == f"flash_attn {package.VERSION} in {tmp_path / 'flash_attn'}, xeflash's\n"
    program = """
import importlib.metadata as metadata
import importlib.util, flash_attn, torch
from flash_attn import flash_attn_func, flash_attn_with_kvcache
from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
from flash_attn.flash_attn_interface import _wrapped_flash_attn_backward, flash_attn_varlen_kvpacked_func
from flash_attn.layers.rotary import apply_rotary_emb
assert importlib.util.find_spec("flash_attn_2_cuda") is None
assert metadata.version("flash_attn") == metadata.version("flash-attn") == flash_attn.__version__
assert "flash_attn" in metadata.packages_distributions()["flash_attn"]
q = torch.ones(1, 3, 2, 64)
print(flash_attn_func(q, q, q, causal=True).sum().item())
"""
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("384.0\n", 0), done.stderr
    assert run(capsys, "remove", "--target", tmp_path)[0] == 0
    assert everything_in(tmp_path) == before
    assert run(capsys, "remove", "--target", tmp_path) == (0, "there is no flash_attn\n")


def test_its_metadata_are_those_of_a_distribution(tmp_path):
    package.install(tmp_path)
    (found,) = metadata.distributions(path=[str(tmp_path)])
    assert found.metadata["Name"] == "flash_attn" and found.requires == ["xeflash"]
    assert {str(file) for file in found.files} == {x for x in everything_in(tmp_path) if (tmp_path / x).is_file()}
    for file in found.files:
        if file.hash is not None:
            assert file.size == len(file.read_binary())


def another(folder, with_metadata):
    (folder / "flash_attn").mkdir()
    (folder / "flash_attn" / "__init__.py").write_text("")
    if with_metadata:
        info = folder / "flash_attn-2.8.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flash_attn\nVersion: 2.8.1\n")
        (info / "INSTALLER").write_text("pip\n")


@pytest.mark.parametrize(("with_metadata", "version"), [(True, "2.8.1"), (False, r"\?")])
@pytest.mark.parametrize("action", ["install", "remove"])
def test_that_of_others_stays(tmp_path, capsys, action, with_metadata, version):
    another(tmp_path, with_metadata)
    before = everything_in(tmp_path)
    with pytest.raises(FileExistsError, match=rf"^flash_attn must .*, got version {version} in {tmp_path}/flash_attn"):
        getattr(package, action)(tmp_path)
    code, said = run(capsys, action, "--target", tmp_path)
    assert code == 2 and said.startswith(f"xeflash flash-attn {action}: flash_attn must ")
    assert everything_in(tmp_path) == before
    assert run(capsys, "status", "--target", tmp_path)[0] == 1


@pytest.mark.parametrize("lost", ["flash_attn", "flash_attn/layers", package._INFO])
@pytest.mark.parametrize("action", ["install", "remove"])
def test_what_is_there_in_part_is_mended_and_removed(tmp_path, capsys, action, lost):
    package.install(tmp_path)
    whole = everything_in(tmp_path)
    shutil.rmtree(tmp_path / lost)
    code, said = run(capsys, "status", "--target", tmp_path)
    command = f"xeflash flash-attn install --target {tmp_path}"
    assert code == 1 and said.endswith(f"xeflash's\nparts of it are missing; run: {command}\n")
    assert run(capsys, action, "--target", tmp_path)[0] == 0
    assert everything_in(tmp_path) == (whole if action == "install" else [])


def test_what_others_put_beside_it_stays(tmp_path, capsys):
    package.install(tmp_path)
    (tmp_path / "flash_attn" / "cute.py").write_text("")
    said = f"removed {tmp_path / 'flash_attn'}, but for what is not xeflash's: cute.py\n"
    assert run(capsys, "remove", "--target", tmp_path) == (0, said)
    assert everything_in(tmp_path) == ["flash_attn", "flash_attn/cute.py"]


def test_an_import_of_what_is_absent_says_what_to_use(tmp_path):
    package.install(tmp_path)
    program = """
import importlib.util, sys
import flash_attn
absent = {"losses.cross_entropy": "linear_cross_entropy", "ops.triton.layer_norm": "torch.nn.functional has rms_norm",
          "ops.activations": "silu", "layers.patch_embed": "torch.nn has Conv2d",
          "modules.mha": "torch.nn has layers", "models.gpt": "xeflash.integrations.transformers"}
for module, instead in absent.items():
    name = "flash_attn." + (module if module.startswith("layers") else module.split(".")[0])
    assert importlib.util.find_spec(name) is None, name
    for statement in (f"import flash_attn.{module}", f"from flash_attn.{module} import x", f"import {name}"):
        try:
            exec(statement)
        except ModuleNotFoundError as error:
            assert str(error).startswith(f"xeflash has no {name}: ") and instead in str(error) and error.name == name
        else:
            raise AssertionError(statement)
    assert name not in sys.modules and not hasattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2])
for name in ("flash_attn.cute", "flash_attn_interface", "flash_attn_2_cuda"):  # programs look for these
    assert importlib.util.find_spec(name) is None
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert str(error) == f"No module named {name!r}"
import flash_attn.layers.rotary as rotary
assert not hasattr(rotary, "Rotary") and not hasattr(rotary, "__path__")
try:
    from flash_attn.layers.rotary import RotaryEmbedding
except ImportError as error:
    print(error)
"""
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("xeflash has no flash_attn.layers.rotary.RotaryEmbedding: apply_rotary_emb takes")


def test_transformers_finds_it(tmp_path):
    package.install(tmp_path)
    program = """
from transformers.utils import import_utils
import transformers.modeling_flash_attention_utils as flash
assert not import_utils.is_flash_attn_2_available()  # where there is no CUDA it asks for kernels from the Hub
import_utils.is_flash_attn_2_available.cache_clear()
import_utils.is_torch_cuda_available = lambda: True
assert import_utils.is_flash_attn_2_available() and import_utils.is_flash_attn_greater_or_equal("2.3.3")
import flash_attn
assert flash._lazy_imports("flash_attention_2")[0] is flash_attn.flash_attn_func
"""
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- forward and backward by themselves ----------------------------------------------------------


def states(rows=9, keys=13):
    return [torch.randn(2, n, heads, 64) for n, heads in ((rows, 4), (keys, 2), (keys, 2))]


def gradients_of(function, states, dout, **options):
    states = [x.clone().requires_grad_() for x in states]
    function(*states, **options).backward(dout)
    return [x.grad for x in states]


STARTS = {"cu_seqlens_q": torch.tensor([0, 9, 18], dtype=torch.int32), "cu_seqlens_k": torch.tensor([0, 13, 26]).int()}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_the_halves_of_a_call_make_the_whole(version, packed):
    q, k, v = (x.flatten(0, 1) for x in states()) if packed else states()
    lengths = [*(x.to(q.device) for x in STARTS.values()), 9, 13] if packed else []
    whole = flash_attn_varlen_func if packed else flash_attn_func
    want, lse, _ = whole(q, k, v, *lengths, causal=True, window_size=(5, -1), softcap=3.0, return_attn_probs=True)
    dout = torch.randn_like(want)
    expected = gradients_of(
        lambda *x: whole(*x, *lengths, causal=True, window_size=(5, -1), softcap=3.0), (q, k, v), dout
    )
    found = [torch.full_like(x, torch.nan) for x in (q, k, v)]
    if version == 2:
        forward = two._wrapped_flash_attn_varlen_forward if packed else two._wrapped_flash_attn_forward
        backward = two._wrapped_flash_attn_varlen_backward if packed else two._wrapped_flash_attn_backward
        options = (0.0, None, True, 5, -1, 3.0, None)
        out, out_lse, _, state = forward(q, k, v, *lengths, *options, False)
        sums = backward(dout, q, k, v, out, out_lse, *found, *lengths, *options, False, state)
    else:
        starts, longest = (lengths[:2], lengths[2:]) if packed else ([None] * 2, [None] * 2)
        rest = [None] * 9
        out, out_lse, *_ = flash_attn_3._flash_attn_forward(
            *(q, k, v, None, None, None, None, *starts, None, None, None, *longest, *rest),
            None,
            True,
            5,
            -1,
            softcap=3.0,
        )
        *_, sums = flash_attn_3._flash_attn_backward(
            dout, q, k, v, out, out_lse, *starts, None, None, *longest, *found, None, True, 5, -1, 3.0
        )
    assert torch.equal(out, want) and torch.equal(out_lse, lse)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(sums, torch.einsum("...hd,...hd->...h", dout, out).mT)


def test_keys_that_are_still_on_their_way():
    """A wrapper without memory, as collectives of torch return them, has to be unwrapped by torch."""
    from torch.testing._internal.two_tensor import TwoTensor

    q, k, v = states()
    k_too, v_too = (TwoTensor(x, x.clone()) for x in (k, v))
    out, lse, *_ = two._flash_attn_forward(q, k, v, 0.0, None, False, -1, -1, 0.0, None, False)
    assert torch.equal(two._flash_attn_forward(q, k_too, v_too, 0.0, None, False, -1, -1, 0.0, None, False)[0].a, out)
    dout = torch.randn_like(out)
    want = gradients_of(flash_attn_func, (q, k, v), dout)
    wrapped = torch.ops.xeflash.attention_backward(
        dout, None, q, k_too, v_too, out, lse, torch.empty(0, dtype=torch.int64), BSHD, ["q", "k", "v"]
    )
    for x, y in zip(wrapped, want, strict=True):
        torch.testing.assert_close(x.a, y, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("scale", [None, 40.0])  # with large scores a backward pass looks at those of its own keys
def test_gradients_of_a_part_of_the_keys(scale):
    q, k, v = states()
    out, lse, *_ = two._flash_attn_forward(q, k, v, 0.0, scale, False, -1, -1, 0.0, None, False)
    dout = torch.randn_like(out)
    want = gradients_of(flash_attn_func, (q, k, v), dout, softmax_scale=scale)
    dq, parts = torch.zeros_like(q), []
    for some in (slice(0, 5), slice(5, 13)):
        found = [torch.empty_like(x) for x in (q, k[:, some], v[:, some])]
        two._flash_attn_backward(
            dout, q, k[:, some], v[:, some], out, lse, *found, 0.0, scale, False, -1, -1, 0.0, None, False
        )
        dq += found[0]
        parts.append(found[1:])
    dk, dv = (torch.cat(x, 1) for x in zip(*parts, strict=True))
    for x, y in zip((dq, dk, dv), want, strict=True):
        torch.testing.assert_close(x, y, atol=1e-6 if scale is None else 1e-3, rtol=1e-4)


def test_dropout_of_the_halves():
    q, k, v = states()
    out, lse, _, state = two._flash_attn_forward(q, k, v, 0.4, None, False, -1, -1, 0.0, None, False)
    dout = torch.randn_like(out)
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    two._flash_attn_backward(dout, q, k, v, out, lse, dq, dk, dv, 0.4, None, False, -1, -1, 0.0, None, False, state)
    torch.testing.assert_close((dv * v).sum(), (dout * out).sum())  # out is linear in V
    with pytest.raises(
        ValueError, match=r"^_flash_attn_backward: rng_state must be what the forward pass gave .*None$"
    ):
        two._flash_attn_backward(dout, q, k, v, out, lse, None, None, dv, 0.4, None, False, -1, -1, 0.0, None, False)


def test_what_the_halves_do_not_have_is_refused():
    q, k, v = states()
    with pytest.raises(NotImplementedError, match="^_flash_attn_forward: return_softmax must be False, got True"):
        two._flash_attn_forward(q, k, v, 0.1, None, False, -1, -1, 0.0, None, True)
    out, lse, *_ = two._flash_attn_forward(q, k, v, 0.0, None, False, -1, -1, 0.0, None, False)
    with pytest.raises(
        ValueError, match=r"^_flash_attn_backward: dk must have the shape of k \[2, 13, 2, 64\], got \[2,"
    ):
        two._flash_attn_backward(
            out, q, k, v, out, lse, None, torch.empty(2, 13, 4, 64), None, 0.0, None, False, -1, -1, 0.0, None, False
        )
    names = ["k_new", "v_new", "qv", "out"]
    for i, name in enumerate(names):
        rest = [q if i == j else None for j in range(20)]
        with pytest.raises(NotImplementedError, match=f"^_flash_attn_forward: {name} must be None, got Tensor"):
            flash_attn_3._flash_attn_forward(q, k, v, *rest, None, False)
    with pytest.raises(NotImplementedError, match="^flash_attn_func: qv must be None, got Tensor"):
        flash_attn_3.flash_attn_func(q, k, v, None, False, q)


# ---- flash-attn 3's order of arguments ------------------------------------------------------------


def test_order_of_flash_attn_3():
    q, k, v = states()
    want, lse, _ = flash_attn_func(q, k, v, 0.0, 0.3, True, return_attn_probs=True)
    for given in ((0.3, True), ()):
        named = {} if given else {"softmax_scale": 0.3, "causal": True}
        assert torch.equal(flash_attn_3.flash_attn_func(q, k, v, *given, **named), want)
    out, found = flash_attn_3.flash_attn_func(q, k, v, 0.3, True, return_attn_probs=True)
    assert torch.equal(out, want) and torch.equal(found, lse)
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    out = flash_attn_3.flash_attn_varlen_func(*packed, *STARTS.values(), 9, 13, None, None, 0.3, True)
    torch.testing.assert_close(out.unflatten(0, (2, 9)), want, atol=1e-6, rtol=1e-5)
    cache = [torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 3)) for x in (k, v)]
    lengths = torch.tensor([13, 13], dtype=torch.int32)
    out = flash_attn_3.flash_attn_with_kvcache(q, *cache, cache_seqlens=lengths, softmax_scale=0.3, causal=True)
    torch.testing.assert_close(out, want, atol=1e-6, rtol=1e-5)


# ---- padding and rotation -------------------------------------------------------------------------


def test_padding_goes_and_comes_back(device):
    x = torch.randn(3, 5, 2, 4, requires_grad=True)
    mask = torch.tensor([[1, 1, 0, 0, 0], [0, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    unused = torch.tensor([[0, 0, 1, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]])
    for more, lengths in ((None, [2, 3, 5]), (unused, [3, 4, 5])):
        kept = (mask if more is None else mask + more).bool()
        tokens, places, starts, longest, used = bert_padding.unpad_input(x, mask, more)
        assert starts.tolist() == [0, *torch.tensor(lengths).cumsum(0).tolist()] and starts.dtype == torch.int32
        assert longest == 5 and used.tolist() == [2, 3, 5] and torch.equal(tokens, x[kept])
        back = bert_padding.pad_input(tokens, places, 3, 5)
        assert torch.equal(back, x * kept[..., None, None])
        (gradient,) = torch.autograd.grad(back.sum(), x)
        assert torch.equal(gradient, kept[..., None, None].expand(x.shape).to(x.dtype))


@pytest.mark.parametrize("shape", [(1, 5), (5,), (3, 5, 1, 1), (3, 4)])
@pytest.mark.parametrize("name", ["attention_mask", "unused_mask"])
def test_masks_of_other_shapes_are_refused(name, shape):
    masks = {"attention_mask": torch.ones(3, 5), name: torch.ones(shape)}
    with pytest.raises(ValueError, match=rf"^unpad_input: {name} must have the shape .* \[3, 5\], got \[{shape[0]}"):
        bert_padding.unpad_input(torch.randn(3, 5, 4), **masks)


def test_rotation_refuses_tables_that_lack_positions():
    x, short, long = torch.randn(2, 7, 2, 8), torch.ones(9, 4), torch.ones(10, 4)
    rotary.apply_rotary_emb(x, long, long, seqlen_offsets=3)
    for cos, sin in ((short, short), (long, short), (long[None], long[None])):
        with pytest.raises(ValueError, match=r"^apply_rotary_emb: cos and sin must .* at least 10 rows, got \[.*\d\]$"):
            rotary.apply_rotary_emb(x, cos, sin, seqlen_offsets=3)
    starts = torch.tensor([0, 4, 14]).int()
    with pytest.raises(ValueError, match="at least 10 rows"):
        rotary.apply_rotary_emb(x.flatten(0, 1), short, short, cu_seqlens=starts, max_seqlen=10)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_is_that_of_the_cache_call(interleaved, dtype):
    from xeflash import flash_attn_with_kvcache

    dtype = getattr(torch, dtype)
    x = torch.randn(2, 3, 2, 64, dtype=dtype)
    angles = torch.arange(20)[:, None] * 100 ** (-torch.arange(8) / 8)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    first = torch.tensor([4, 11], dtype=torch.int32)
    cache = torch.zeros(2, 2, 16, 2, 64, dtype=dtype)
    flash_attn_with_kvcache(
        x, *cache, x, x, rotary_cos=cos, rotary_sin=sin, cache_seqlens=first, rotary_interleaved=interleaved
    )
    want = torch.stack([cache[0, row, at : at + 3] for row, at in enumerate(first.tolist())])
    got = rotary.apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=first)
    torch.testing.assert_close(got, want)
    packed = rotary.apply_rotary_emb(
        x.flatten(0, 1),
        cos,
        sin,
        interleaved,
        seqlen_offsets=first,
        cu_seqlens=torch.tensor([0, 3, 6]).int(),
        max_seqlen=3,
    )
    assert torch.equal(packed, got.flatten(0, 1))
    assert torch.equal(rotary.apply_rotary_emb_torch(x, cos[4:7], sin[4:7], interleaved)[0], got[0])
    kept = x.clone()
    assert rotary.apply_rotary_emb(kept, cos, sin, interleaved, True, first) is kept and torch.equal(kept, got)
    with pytest.raises(
        ValueError, match=r"^apply_rotary_emb: cos must have at most half the head_dim of x \(64\), got 40"
    ):
        rotary.apply_rotary_emb(x, torch.ones(9, 40), torch.ones(9, 40))


# ---- a program that imports it ---------------------------------------------------------------------


def test_diffusers(tmp_path):
    pytest.importorskip("diffusers", reason="diffusers is not installed: pip install diffusers")
    package.install(tmp_path)
    program = """
import torch
from diffusers.models.attention_dispatch import attention_backend, dispatch_attention_fn
q, k, v = torch.randn(3, 2, 37, 4, 64, dtype=torch.bfloat16)
mask = torch.arange(37) < torch.tensor([[37], [20]])
for name, given in (("flash", None), ("flash_varlen", None), ("flash_varlen", mask)):
    with attention_backend(name):
        out = dispatch_attention_fn(q, k, v, attn_mask=given)
    with attention_backend("native"):
        want = dispatch_attention_fn(q, k, v, attn_mask=None if given is None else given[:, None, None])
    torch.testing.assert_close(out, want, atol=2e-2, rtol=2e-2)
"""
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
