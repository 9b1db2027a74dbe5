"""Weights of 4 bits in the formats of checkpoints are, packed for linear, the weights that they were."""

import re

import ml_dtypes
import numpy as np
import pytest
import torch
import xeflash
from int4_weights import (
    Weight,
    as_torch,
    awq,
    compressed,
    compressed_tensors_scheme,
    dense,
    gptq,
    gptqmodel_layer,
    plain_int32,
    tiles,
    words,
)

SHAPES = [(1, 40, -1), (7, 40, 32), (8, 96, 32), (24, 1000, 128), (8, 1000, 64), (16, 256, 64), (8, 1000, -1)]


def check(w, tensors, **named):
    """Both libraries' arrays give the weight; of torch's the results are torch's."""
    by_numpy = xeflash.pack_int4(**tensors, **named)
    by_torch = xeflash.pack_int4(**as_torch(tensors), **named)
    for packed, library in ((by_numpy, np.ndarray), (by_torch, torch.Tensor)):
        assert all(isinstance(x, library) for x in (packed.weight, packed.scales))
        assert tuple(packed.weight.shape) == (len(w.q), -(-w.q.shape[1] // 128) * 64)
        np.testing.assert_array_equal(dense(packed, w.q.shape[1]), w.dense())
    assert by_numpy.group == by_torch.group == (w.group if w.groups > 1 else None)
    return by_torch


@pytest.mark.parametrize(("outputs", "inputs", "group"), SHAPES)
def test_formats_are_read(outputs, inputs, group):
    w = Weight(outputs, inputs, group)
    check(w, plain_int32(w))
    check(w, {"q": w.q, "scales": w.scales, "zeros": w.zeros})
    check(w, compressed(w))
    check(w, compressed(w, packed_zeros=False))
    check(w, gptq(w, 2), format="gptq_v2", group=group)
    if outputs % 8 == 0:
        check(w, awq(w))


@pytest.mark.parametrize(("outputs", "inputs", "group"), SHAPES)
def test_zeros_of_gptq_v1_are_1_to_16(outputs, inputs, group):
    w = Weight(outputs, inputs, group, 1, 16)
    packed = check(w, gptq(w, 1), format="gptq")
    assert packed.zeros.dtype is torch.int8 and int(packed.zeros.max()) == 16


@pytest.mark.parametrize("version", [1, 2])
def test_symmetric_gptq_tells_its_version_whatever_its_name_is(version):
    w = Weight(16, 256, 64, 8, 8)
    for name in (None, "gptq"):
        assert check(w, gptq(w, version), format=name).zeros is None
    tensors = gptq(w, 2)
    del tensors["qzeros"]
    assert check(w, tensors).zeros is None


def test_zeros_of_7_are_7_in_gptq_v2():
    w = Weight(16, 256, 64, 7, 7)
    assert set(check(w, gptq(w, 2), format="gptq_v2").zeros.flatten().tolist()) == {7}


@pytest.mark.parametrize(("outputs", "inputs", "group"), [(7, 40, 32), (24, 1000, 128), (16, 256, 64)])
def test_act_order_sorts_columns(outputs, inputs, group):
    w = Weight(outputs, inputs, group, act_order=True)
    packed = check(w, gptq(w, 2), format="gptq_v2")
    assert sorted(packed.order.tolist()) == list(range(inputs))
    check(w, compressed(w))
    check(w, {"q": w.q, "scales": w.scales, "zeros": w.zeros, "g_idx": w.g_idx})


def test_columns_of_a_group_keep_their_order():
    w = Weight(7, 96, 32)
    w.g_idx = np.arange(96) % 3
    assert check(w, compressed(w)).order.tolist() == [3 * k + group for group in range(3) for k in range(32)]


def test_g_idx_in_order_is_none_and_so_is_one_that_is_not_filled():
    w = Weight(16, 256, 64)
    assert check(w, compressed(w)).order is None
    assert check(w, compressed(w) | {"weight_g_idx": np.full(256, -1, np.int32)}).order is None


@pytest.mark.parametrize(("outputs", "inputs", "group"), [(1, 40, 32), (7, 96, 32), (8, 1000, 128), (9, 1024, 64)])
def test_tiles_with_whole_zeros_are_read(outputs, inputs, group):
    w = Weight(outputs, inputs, group)
    w.scales = w.scales.astype(ml_dtypes.bfloat16).astype(np.float16)
    check(w, tiles(w))


def test_tiles_with_other_zeros_are_refused():
    w = Weight(7, 96, 32)
    scales = w.scales.astype(ml_dtypes.bfloat16).astype(np.float32)
    with pytest.raises(ValueError, match=r"scale_and_zero must have zeros that are whole multiples .* 0\.(4|5)"):
        xeflash.pack_int4(**tiles(w, scales * 2.5))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (7,), (7, 1)])
def test_compressed_tensors_may_have_a_scale_of_the_tensor_or_of_rows(shape):
    w = Weight(7, 96, -1, 8, 8)
    w.scales[:] = w.scales[:, :1] if 7 not in shape else w.scales
    scale = w.scales[0, : 7 if 7 in shape else 1].reshape(shape)
    check(w, {"weight_packed": words(w.q), "weight_scale": scale})


@pytest.mark.parametrize("dtype", ["float32", "float16", ml_dtypes.bfloat16])
def test_scales_keep_their_dtype(dtype):
    scales = np.ones((3, 7), dtype)
    q = np.zeros((7, 96), np.int64)
    assert xeflash.pack_int4(q=q, scales=scales).scales.dtype == scales.dtype
    assert xeflash.pack_int4(q=q, scales=scales[0]).group is None


def test_parameters_give_what_requires_no_grad():
    scales = torch.nn.Parameter(torch.ones(3, 7))
    packed = xeflash.pack_int4(q=torch.zeros(7, 96, dtype=torch.int32), scales=scales)
    assert not packed.scales.requires_grad


# ---- what is refused ----------------------------------------------------------------------------

GPTQ = gptq(Weight(16, 256, 64), 2)
CT = compressed(Weight(16, 256, 64))
PLAIN = {"q": np.zeros((7, 96), np.uint8), "scales": np.ones((3, 7), np.float32)}
TILES = tiles(Weight(8, 96, 32))
REFUSED = {
    "bits": (PLAIN | {"bits": 8}, ValueError, "bits must be 4, got 8"),
    "group": (PLAIN | {"group": 16}, ValueError, "group must be 32, 64, 128, or -1 for whole rows, got 16"),
    "other-group": (PLAIN | {"group": 64}, ValueError, "group must be 32, as 3 groups of 96 inputs have, got 64"),
    "small-groups": (PLAIN | {"scales": np.ones((6, 7), np.float32)}, ValueError, "scales must be those of groups of 32"),
    "format": (PLAIN | {"format": "marlin"}, ValueError, "format must be one of gptq, gptq_v2, awq, compressed-tensors"),
    "nf4": ({"weight": PLAIN["q"], "absmax": PLAIN["q"]}, NotImplementedError, 'format must not be "nf4": its 16'),
    "gguf": ({"format": "gguf", "weight": PLAIN["q"]}, NotImplementedError, 'format must not be "gguf": its scales'),
    "awq_gemv": (
        {"qweight": words(np.zeros((16, 256))), "qzeros": words(np.zeros((16, 8))), "scales": np.ones((16, 8), "float16")},
        NotImplementedError, 'format must not be "awq_gemv": it has another order',
    ),
    "names": ({"qweight": GPTQ["qweight"]}, TypeError, "tensors must be qweight scales [qzeros] [g_idx], or qweight qzeros"),
    "no-names": ({"q": None}, TypeError, "[g_idx]; got none"),
    "more-names": (PLAIN | {"bias": PLAIN["q"]}, TypeError, "got q scales bias"),
    "list": (PLAIN | {"scales": [1.0]}, TypeError, "scales must be a dense torch tensor with values or a numpy array, got list"),
    "meta": (
        {"q": torch.zeros(7, 96, dtype=torch.uint8, device="meta"), "scales": torch.ones(3, 7, device="meta")},
        TypeError, "q must be a dense torch tensor with values or a numpy array, got Tensor",
    ),
    "two-libraries": (PLAIN | {"scales": torch.ones(3, 7)}, ValueError, "scales must be where q is, numpy.cpu, got torch.cpu"),
    "asymmetric": (GPTQ, ValueError, 'format must be "gptq" (zeros are stored less 1) or "gptq_v2" where'),
    "dtype": (GPTQ | {"qweight": GPTQ["qweight"].astype(np.int64)}, TypeError, "qweight must have the dtype int32, got int64"),
    "scales-dtype": (PLAIN | {"scales": np.ones((3, 7))}, TypeError, "scales must have the dtype float32 or float16 or bfloat16, got float64"),
    "rank": (GPTQ | {"qweight": GPTQ["qweight"][0]}, ValueError, "qweight must have 2 dimensions, got 1; qweight.shape = [16]"),
    "outputs": (GPTQ | {"scales": GPTQ["scales"][:, :15]}, ValueError, "scales must have as many columns as qweight (GPTQ), or 8"),
    "outputs-said": (
        GPTQ | {"scales": GPTQ["scales"][:, :15], "format": "gptq"},
        ValueError, "scales must have the shape [4, 16] (groups, columns of qweight), got [4, 15]",
    ),
    "qzeros": (
        GPTQ | {"qzeros": GPTQ["qzeros"][:, :1]},
        ValueError, "qzeros must have the shape [4, 2] (groups, columns of qweight / 8), got [4, 1]",
    ),
    "gptq-8-bits": (
        GPTQ | {"qweight": np.zeros((64, 16), np.int32)},
        ValueError, "g_idx must have an entry for each of the 8 inputs in a row of qweight (512) of 4 bits, got 256",
    ),
    "g_idx": (
        GPTQ | {"g_idx": np.zeros(256, np.int32), "format": "gptq"},
        ValueError, "g_idx must name each group 64 times, and the last group for the remaining ones of 256 inputs, got groups 0..0",
    ),
    "g_idx-length": (
        PLAIN | {"g_idx": np.zeros(95, np.int32)}, ValueError, "g_idx must have an entry for each of 96 inputs, got 95",
    ),
    "awq-groups": (
        awq(Weight(16, 256, 64)) | {"qzeros": np.zeros((3, 2), np.int32)},
        ValueError, "qzeros must have the shape [4, 2] (groups, columns of qweight), got [3, 2]",
    ),
    "weight_shape": (
        CT | {"weight_shape": np.array([16, 128])},
        ValueError, "weight_shape must be [16, 256], of 8 inputs of 4 bits in an int32, or up to 7 inputs less, got [16, 128]",
    ),
    "weight_scale": (
        CT | {"weight_scale": CT["weight_scale"].T},
        ValueError, "weight_scale must have the shape [16, 16] (rows of weight_packed, groups), got [4, 16]",
    ),
    "weight_zero_point": (
        CT | {"weight_zero_point": CT["weight_zero_point"].T},
        ValueError, "weight_zero_point must have the shape [2, 4] (rows of weight_packed / 8, groups), got [4, 2]",
    ),
    "shape": (
        TILES | {"shape": (9, 96)}, ValueError, "shape must be at most that of qdata, [8, 1024], got [9, 96]",
    ),
    "tiles": (
        TILES | {"qdata": TILES["qdata"][:, :, :, :2]},
        ValueError, "qdata must have the shape [1, 8, 32, 4] (outputs / 8, inputs / 128, 32, 4), got [1, 8, 32, 2]",
    ),
    "tiles-groups": (
        TILES | {"scale_and_zero": TILES["scale_and_zero"][:3]},
        ValueError, "scale_and_zero must have a row for each group of the inputs of qdata (1024), got 3",
    ),
    "range": (PLAIN | {"q": PLAIN["q"] + 16}, ValueError, "q must be in 0..15, got 16..16"),
    "zeros": (PLAIN | {"zeros": np.full((3, 7), 128)}, ValueError, "zeros must be in -128..127, got 128..128"),
    "format-list": (PLAIN | {"format": ["gptq"]}, TypeError, "format must be a name, or None, got list"),
    "group-array": (PLAIN | {"group": np.full(2, 32)}, ValueError, "group must be 32, 64, 128, or -1 for whole rows, got array"),
    "bits-array": (PLAIN | {"bits": np.full(2, 4)}, ValueError, "bits must be 4, got array"),
    "zeros-shape": (PLAIN | {"zeros": np.zeros((2, 7), np.int8)}, ValueError, "zeros must have the shape [3, 7] of scales, got [2, 7]"),
    "empty": (
        {"q": np.zeros((7, 0), np.uint8), "scales": np.ones((1, 7), np.float32)},
        ValueError, "the weight must have an element, got the shape [7, 0]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused(name):
    arguments, error, text = REFUSED[name]
    with pytest.raises(error, match="^pack_int4: .*" + re.escape(text)):
        xeflash.pack_int4(**arguments)


# ---- against the libraries ----------------------------------------------------------------------


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("outputs", "inputs", "group"), [(7, 1000, -1), (16, 96, 32), (24, 256, 128)])
def test_weights_of_compressed_tensors(outputs, inputs, group, symmetric):
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor as Compressor

    w = Weight(outputs, inputs, group, *((8, 8) if symmetric else (0, 15)))
    scheme = compressed_tensors_scheme(w, symmetric)
    state = {
        "weight": torch.from_numpy(w.dense()).float(),
        "weight_scale": torch.from_numpy(w.scales.T).float().contiguous(),
        "weight_zero_point": torch.from_numpy(w.zeros.T - 8).to(torch.int8).contiguous(),
    }
    packed = Compressor.compress(state, scheme)
    ours = xeflash.pack_int4(**packed)
    want = Compressor.decompress(packed, scheme)["weight"]
    np.testing.assert_array_equal(dense(ours, inputs), want.double().numpy())
    assert (ours.zeros is None) == symmetric


@pytest.mark.parametrize(("outputs", "inputs", "group"), [(8, 96, 32), (24, 1000, 128), (16, 256, 64), (8, 40, -1)])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("act_order", [False, True])
def test_weights_of_gptqmodel(outputs, inputs, group, version, act_order):
    pytest.importorskip("gptqmodel")
    layer, w = gptqmodel_layer(outputs, inputs, group, act_order, version)
    names = ("qweight", "qzeros", "scales", "g_idx")
    ours = xeflash.pack_int4(**{name: getattr(layer, name) for name in names}, format=("gptq", "gptq_v2")[version - 1])
    np.testing.assert_array_equal(dense(ours, inputs), w.dense())


@pytest.mark.parametrize(("outputs", "inputs", "group"), [(8, 96, 32), (24, 1024, 128), (16, 256, 64), (8, 40, -1)])
def test_weights_of_gptqmodel_awq(outputs, inputs, group):
    pytest.importorskip("gptqmodel")
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm, pack_awq

    w = Weight(outputs, inputs, group)
    qweight, qzeros = pack_awq(torch.from_numpy(w.q.T).int(), torch.from_numpy(w.zeros).int(), 4)
    scales = torch.from_numpy(w.scales)
    want = dequantize_gemm(qweight, qzeros, scales.float(), 4, w.group)
    ours = xeflash.pack_int4(qweight=qweight, qzeros=qzeros, scales=scales)
    np.testing.assert_array_equal(dense(ours, inputs), want.T.double().numpy())
    np.testing.assert_array_equal(dense(ours, inputs), w.dense())


@pytest.mark.gpu
@pytest.mark.xpu
def test_tensors_of_a_gpu_stay_there(xpu):
    w = Weight(16, 256, 64, act_order=True)
    for tensors, named in ((gptq(w, 2), {"format": "gptq_v2"}), (awq(w), {}), (compressed(w), {})):
        host = as_torch(tensors)
        want = xeflash.pack_int4(**host, **named)
        got = xeflash.pack_int4(**{name: x.to("xpu") for name, x in host.items()}, **named)
        for ours, theirs in zip(got, want, strict=True):
            if isinstance(theirs, torch.Tensor):
                assert ours.device.type == "xpu" and torch.equal(ours.cpu(), theirs)
            else:
                assert ours == theirs
