"""Weights of 4 bits, packed as the formats of checkpoints describe it, number by number, and what linear takes unpacked."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch


def unpacked(weight, inputs):
    """(N, K) of what linear takes, word by word as its documentation has it."""
    words = np.ascontiguousarray(np.asarray(weight)).view("<u4")
    q = np.empty((len(words), words.shape[1] * 8), np.uint8)
    for place in range(words.shape[1]):
        unit, d = divmod(place, 16)
        for m in range(4):
            q[:, unit * 128 + 32 * m + 2 * d] = words[:, place] >> (4 * m) & 15
            q[:, unit * 128 + 32 * m + 2 * d + 1] = words[:, place] >> (16 + 4 * m) & 15
    assert (q[:, inputs:] == 8).all()
    return q[:, :inputs]


def dense(packed, inputs):
    """The weight in float64, in the order of its inputs."""
    q = unpacked(packed.weight, inputs).astype(np.float64)
    of = np.arange(inputs) // (packed.group or inputs)
    scales = np.asarray(packed.scales.float() if isinstance(packed.scales, torch.Tensor) else packed.scales)
    zeros = np.full(scales.shape, 8) if packed.zeros is None else np.asarray(packed.zeros)
    w = scales.astype(np.float64)[of].T * (q - zeros[of].T)
    if packed.order is not None:
        w[:, np.asarray(packed.order)] = w.copy()
    return w


class Weight:
    """A weight of random nibbles, scales and zeros: in groups of g_idx, or in groups that follow each other."""

    def __init__(self, outputs, inputs, group, lowest=0, highest=15, act_order=False, largest=2.0):
        rng = np.random.default_rng(outputs + inputs)
        self.group = inputs if group == -1 else group
        self.groups = -(-inputs // self.group)
        self.q = rng.integers(0, 16, (outputs, inputs))
        self.scales = rng.uniform(largest / 4, largest, (self.groups, outputs)).astype(np.float16)
        self.zeros = rng.integers(lowest, highest + 1, (self.groups, outputs))
        self.zeros.flat[0], self.zeros.flat[-1] = lowest, highest
        self.g_idx = np.arange(inputs) // self.group
        if act_order:
            rng.shuffle(self.g_idx)

    def dense(self):
        return self.scales.astype(np.float64)[self.g_idx].T * (self.q - self.zeros[self.g_idx].T)


def words(rows, order=range(8)):
    """Each eight numbers of a row in an int32, the one that `order` has at i in nibble i."""
    found = np.zeros((len(rows), -(-rows.shape[1] // 8)), np.uint32)
    for (row, column), number in np.ndenumerate(rows):
        found[row, column // 8] |= np.uint32(int(number) << 4 * list(order).index(column % 8))
    return found.view(np.int32)


def gptq(w, version):
    return {
        "qweight": np.ascontiguousarray(words(w.q).T),
        "qzeros": words(w.zeros - (2 - version)),
        "scales": w.scales,
        "g_idx": w.g_idx.astype(np.int32),
    }


def awq(w):
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {"qweight": words(w.q.T, order), "qzeros": words(w.zeros, order), "scales": w.scales}


def compressed(w, packed_zeros=True):
    zeros = np.ascontiguousarray(words(w.zeros).T) if packed_zeros else (w.zeros.T - 8).astype(np.int8)
    return {
        "weight_packed": words(w.q),
        "weight_scale": np.ascontiguousarray(w.scales.T),
        "weight_zero_point": zeros,
        "weight_shape": np.array(w.q.shape),
        "weight_g_idx": w.g_idx.astype(np.int32),
    }


def plain_int32(w):
    return {"qdata": words(w.q), "scale": w.scales, "zero_point": w.zeros.astype(np.int8), "shape": w.q.shape}


def tiles(w, float_zeros=None):
    """torch's kernel for CUDA, lane by lane, of a weight that is padded to tiles of 8 outputs and 1024 inputs."""
    outputs, inputs = w.q.shape
    rows, columns = -(-outputs // 8) * 8, -(-inputs // 1024) * 1024
    q = np.zeros((rows, columns), np.int64)
    q[:outputs, :inputs] = w.q
    found = np.zeros((rows // 8, columns // 128, 32, 4), np.uint32)
    for tile, outer, lane, word in np.ndindex(found.shape):
        n, k = tile * 8 + lane // 4, (outer * 8 + 2 * word) * 16 + lane % 4 * 2
        for nibble, at in enumerate((0, 8, 16, 24, 1, 9, 17, 25)):
            found[tile, outer, lane, word] |= np.uint32(int(q[n, k + at]) << 4 * nibble)
    both = np.zeros((columns // w.group, rows, 2), np.float32)
    scales = w.scales.astype(ml_dtypes.bfloat16).astype(np.float32)
    both[: w.groups, :outputs, 0] = scales
    both[: w.groups, :outputs, 1] = scales * (8 - w.zeros) if float_zeros is None else float_zeros
    return {
        "qdata": found.view(np.int32),
        "scale_and_zero": both.astype(ml_dtypes.bfloat16),
        "shape": w.q.shape,
    }


def as_torch(tensors):
    def one(array):
        if not isinstance(array, np.ndarray):
            return array
        if array.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    return {name: one(array) for name, array in tensors.items()}


def stand_in(name, w, tensors, bias=False):
    """A layer that has the names and tensors of one of GPTQModel's, and no forward."""
    base = type("BaseQuantLinear", (torch.nn.Module,), {"__module__": "gptqmodel.nn_modules.qlinear"})
    more = {"__module__": "gptqmodel.nn_modules.qlinear.torch", "REQUIRES_FORMAT_V2": True, "qzero_format": lambda _: 1}
    layer = type(name, (base,), more)()
    layer.bits, layer.adapter, (layer.out_features, layer.in_features) = 4, None, w.q.shape
    for buffer, array in as_torch(tensors).items():
        layer.register_buffer(buffer, array)
    layer.register_buffer("bias", torch.randn(len(w.q)).half() if bias else None)
    return layer.eval()


def gptqmodel_layer(outputs, inputs, group, act_order=False, version=2, bias=False, largest=2.0):
    """A layer of GPTQModel's that it packed itself, or else a stand-in with zeros as they are, and the weight."""
    w = Weight(outputs, inputs, group, version % 2, 15, act_order, largest)
    try:
        from gptqmodel.nn_modules.qlinear.torch import TorchLinear
        from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
    except ImportError:
        return stand_in("TorchLinear", w, gptq(w, 2), bias), w
    linear = torch.nn.Linear(inputs, outputs, bias=bias)
    linear.weight.data = torch.from_numpy(w.dense()).float()
    layer = TorchLinear(
        bits=4, group_size=group, sym=False, desc_act=act_order, in_features=inputs, out_features=outputs, bias=bias
    )
    scales, zeros = (torch.from_numpy(x.T).float().contiguous() for x in (w.scales, w.zeros))
    layer.pack_original(linear, scales, zeros, torch.from_numpy(w.g_idx).int())
    layer.qzero_format(2)
    if version == 1:
        convert_gptq_v2_to_v1_format_module(layer, SimpleNamespace(bits=4, pack_dtype=torch.int32))
    return layer.eval(), w


def awq_layer(outputs, inputs, group, largest=2.0):
    """A layer of GPTQModel's for AWQ, or else a stand-in, and the weight."""
    w = Weight(outputs, inputs, group, largest=largest)
    try:
        from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear
    except ImportError:
        return stand_in("AwqTorchLinear", w, awq(w)), w
    layer = AwqTorchLinear(
        bits=4, group_size=group, sym=False, desc_act=False, in_features=inputs, out_features=outputs,
        register_buffers=True,
    )  # fmt: skip
    for name, x in as_torch(awq(w)).items():
        setattr(layer, name, x)
    return layer.eval(), w


def compressed_tensors_scheme(w, symmetric):
    """What compressed-tensors knows of a weight."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    grouped = {"strategy": "group", "group_size": w.group} if w.groups > 1 else {"strategy": "channel"}
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(num_bits=4, symmetric=symmetric, **grouped))
