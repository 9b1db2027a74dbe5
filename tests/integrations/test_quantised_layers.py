"""Quantised layers of other libraries, by xeflash.linear, give what their numbers in float64 give, and models the same tokens."""

import copy
import types

import numpy as np
import pytest
import torch
import transformers
from cover import few
from int4_weights import Weight, as_torch, awq_layer, compressed, gptqmodel_layer, plain_int32, tiles
from patched import LAYERS, assert_serves, calls_of_linear, close, generate, in_place, saved_and_loaded
from tiny_models import decoder
from torch import nn
from xeflash.integrations.transformers_linear import patch, unpatch

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture
def calls(monkeypatch):
    return calls_of_linear(monkeypatch)


# ---- GPTQModel ----------------------------------------------------------------------------------


@pytest.mark.parametrize("act_order", [False, True])
def test_gptq_generates_what_its_dense_copy_does(act_order, calls):
    model = decoder("llama").requires_grad_(False)

    def make(linear, name):
        layer, w = gptqmodel_layer(linear.out_features, linear.in_features, 32, act_order, largest=0.06)
        return layer, w.dense()

    assert_serves(model, in_place(model, make), "gptq", calls)
    assert any(named.get("order") is not None for *_, named in calls) == act_order


@pytest.mark.parametrize("version", [1, 2])
def test_gptq_is_served_as_from_pretrained_loads_it(version, calls, tmp_path):
    pytest.importorskip("gptqmodel")
    pytest.importorskip("optimum")
    model = decoder("llama").requires_grad_(False)

    def make(linear, name):
        layer, w = gptqmodel_layer(
            linear.out_features, linear.in_features, 32, act_order=True, version=version, largest=0.06
        )
        return layer, w.dense()

    plain = in_place(model, make)
    model.config.quantization_config = {
        "quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False,
        "checkpoint_format": "gptq" if version == 1 else "gptq_v2",
    }  # fmt: skip
    assert_serves(saved_and_loaded(model, tmp_path), plain, "gptq", calls)


@torch.no_grad()
def test_gptq_keeps_its_tensors(calls):
    layer, w = gptqmodel_layer(24, 1000, 32, bias=True)
    state = {name: x.clone() for name, x in layer.state_dict().items()}
    x = torch.randn(3, 1000)
    patch(layer)
    close(layer(x), x.double() @ torch.from_numpy(w.dense()).T + layer.bias)
    assert all(torch.equal(layer.state_dict()[name], x) for name, x in state.items()) and len(calls) == 1


@torch.no_grad()
def test_what_is_loaded_later_is_packed():
    layer, _ = gptqmodel_layer(24, 256, 32)
    other, w = gptqmodel_layer(24, 256, 32, act_order=True)
    patch(layer)
    copied = copy.deepcopy(layer)
    x = torch.randn(3, 256)
    want = x.double() @ torch.from_numpy(w.dense()).T
    for each in (layer, copied):
        each.load_state_dict(other.state_dict())
        close(each(x), want)
        unpatch(each)
        assert not each._load_state_dict_post_hooks


def test_gradients_reach_the_inputs_of_gptq():
    layer, w = gptqmodel_layer(24, 256, 32, act_order=True)
    x = torch.randn(3, 256, requires_grad=True)
    patch(layer)
    layer(x).sum().backward()
    close(x.grad, torch.from_numpy(w.dense()).sum(0).expand(3, 256))


@torch.no_grad()
@pytest.mark.parametrize("act_order", [False, True])
def test_gptq_of_8_bits(act_order, calls):
    pytest.importorskip("gptqmodel")
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    w = Weight(16, 256, 64, act_order=act_order)
    w.q, w.zeros = w.q * 17, w.zeros * 17
    linear = nn.Linear(256, 16, bias=False)
    linear.weight.data = torch.from_numpy(w.dense()).float()
    layer = TorchLinear(
        bits=8, group_size=64, sym=False, desc_act=act_order, in_features=256, out_features=16, bias=False
    )
    scales, zeros = (torch.from_numpy(x.T).float().contiguous() for x in (w.scales, w.zeros))
    layer.pack_original(linear, scales, zeros, torch.from_numpy(w.g_idx).int())
    layer.qzero_format(2)
    x = torch.randn(3, 256)
    assert patch(layer).swapped == {"": "gptq"}
    close(layer(x), x.double() @ torch.from_numpy(w.dense()).T)
    assert calls[0][1].dtype is torch.int8


def test_awq_generates_what_its_dense_copy_does(calls):
    model = decoder("llama").requires_grad_(False)

    def make(linear, name):
        layer, w = awq_layer(linear.out_features, linear.in_features, 32, 0.06)
        return layer, w.dense()

    assert_serves(model, in_place(model, make), "awq", calls)


def test_awq_is_served_as_from_pretrained_loads_it(calls, tmp_path):
    pytest.importorskip("gptqmodel")
    pytest.importorskip("optimum")
    model = decoder("llama").requires_grad_(False)

    def make(linear, name):
        layer, w = awq_layer(linear.out_features, linear.in_features, 32, 0.06)
        return layer, w.dense()

    plain = in_place(model, make)
    model.config.quantization_config = {
        "quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm",
        "modules_to_not_convert": ["lm_head"],
    }  # fmt: skip
    assert_serves(saved_and_loaded(model, tmp_path), plain, "awq", calls)


@torch.no_grad()
def test_a_layer_of_gptqmodel_gives_what_it_gave():
    pytest.importorskip("gptqmodel")
    for layer in (gptqmodel_layer(24, 256, 32, act_order=True)[0], awq_layer(24, 256, 32)[0]):
        x = torch.randn(3, 256).to(torch.bfloat16)
        layer.optimized = True  # it would compile its own forward
        want = layer(x)
        patch(layer)
        close(layer(x), want, 2**-6)


def test_layers_of_gptqmodel_that_do_more_are_left():
    layers = nn.ModuleDict(
        {name: gptqmodel_layer(24, 256, 32)[0] for name in ("adapter", "rotated", "packed", "kind", "ok")}
    )
    layers["adapter"].adapter = types.SimpleNamespace()
    layers["rotated"].online_full_had = True
    layers["packed"].linear_mode = "inference"
    layers["kind"].__class__ = type("MarlinLinear", (type(layers["ok"]),), {})
    done = patch(layers)
    assert list(done.swapped) == ["ok"]
    assert done.left == {
        "adapter": "GPTQModel's TorchLinear has an adapter",
        "rotated": "GPTQModel's TorchLinear rotates its inputs",
        "packed": "GPTQModel's TorchLinear has packed its weight anew, in its first call",
        "kind": "GPTQModel's MarlinLinear has a format that linear does not read",
    }


def test_a_layer_whose_tensors_do_not_fit_is_left():
    layers = nn.ModuleDict({name: gptqmodel_layer(24, 256, 32)[0] for name in ("small", "ok")})
    layers["small"].scales = layers["small"].scales[:3]
    assert "qzeros must have the shape [3, 3]" in patch(layers).left["small"]


@torch.no_grad()
@pytest.mark.gpu
@pytest.mark.xpu
def test_a_layer_follows_its_model_to_a_gpu(xpu, calls):
    layer, w = gptqmodel_layer(24, 256, 64, act_order=True, bias=True)
    x = torch.randn(3, 256).half()
    want = x.double() @ torch.from_numpy(w.dense()).T + layer.bias
    patch(layer)
    got = layer.to("xpu")(x.to("xpu"))
    assert got.device.type == "xpu" and len(calls) == 1
    close(got.cpu(), want, 2**-9)
    calls.clear()
    close(layer.cpu()(x), want, 2**-9)
    assert len(calls) == 1


@torch.no_grad()
def test_torch_compile_sees_one_graph_of_gptq():
    model = nn.Sequential(gptqmodel_layer(24, 256, 32, act_order=True, bias=True)[0])
    patch(model)
    x = torch.randn(3, 256)
    assert torch.equal(torch.compile(model, backend="aot_eager", fullgraph=True)(x), model(x))


# ---- compressed-tensors -------------------------------------------------------------------------


def compressed_model(symmetric=False, format=None, **weights):
    """A model that compressed-tensors has quantised and compressed, and a copy that it has decompressed again."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    model = decoder("llama").requires_grad_(False)
    args = {"num_bits": 4, "symmetric": symmetric, "strategy": "group", "group_size": 32, **weights}
    groups = {"0": {"targets": ["Linear"], "weights": args, "format": format}}
    config = QuantizationConfig(config_groups=groups, ignore=["lm_head"])
    apply_quantization_config(model, config)
    for module in model.modules():
        if hasattr(module, "quantization_scheme"):
            scale, zero = module.weight_scale, getattr(module, "weight_zero_point", None)
            groups = module.weight.view(len(scale), scale.shape[1], -1)
            low, high = groups.amin(-1), groups.amax(-1)
            largest = {4: 7, 8: 127}[args["num_bits"]] if args.get("type", "int") == "int" else 448
            scale.data = (torch.maximum(high, -low) / largest) if symmetric else (high - low) / (2 * largest + 1)
            if zero is not None:
                zero.data = (
                    torch.zeros_like(low, dtype=zero.dtype)
                    if symmetric
                    else (-largest - 1 - low / scale).round().to(zero.dtype)
                )
    compressor = ModelCompressor(quantization_config=config)
    plain = copy.deepcopy(model)
    for each in (model, plain):
        compressor.compress_model(each)
    compressor.decompress_model(plain)
    return model, plain


WEIGHTS_OF_COMPRESSED_TENSORS = {
    "4 bits": {},
    "4 bits, symmetric": {"symmetric": True},
    "4 bits, rows": {"strategy": "channel", "group_size": None},
    "int8": {"num_bits": 8, "strategy": "channel", "group_size": None, "symmetric": True, "format": "int-quantized"},
    "8 bits": {"num_bits": 8},
    "8 bits, symmetric": {"num_bits": 8, "strategy": "channel", "group_size": None, "symmetric": True},
    "fp8": {"num_bits": 8, "type": "float", "strategy": "channel", "group_size": None, "symmetric": True},
}


@pytest.mark.parametrize("name", WEIGHTS_OF_COMPRESSED_TENSORS)
def test_compressed_tensors_generates_what_its_decompressed_copy_does(name, calls):
    model, plain = compressed_model(**WEIGHTS_OF_COMPRESSED_TENSORS[name])
    state = list(model.state_dict())
    assert_serves(model, plain, "compressed-tensors", calls)
    assert list(model.state_dict()) == state, "it has been unpacked"


@torch.no_grad()
@pytest.mark.parametrize(
    ("outputs", "inputs", "group", "bits"),
    [(7, 40, 32, 4), (24, 1000, 32, 4), (24, 1000, 64, 8), pytest.param(7, 40, 32, 8, marks=pytest.mark.wide)],
)
def test_tensors_of_compressed_tensors_are_read(outputs, inputs, group, bits, calls):
    w = Weight(outputs, inputs, group, act_order=bits == 4)
    layer = nn.Linear(inputs, outputs)
    del layer.weight
    args = types.SimpleNamespace(num_bits=bits, type="int")
    layer.quantization_scheme = types.SimpleNamespace(weights=args, output_activations=None)
    for name, x in as_torch(compressed(w) if bits == 4 else compressed_8_bits(w)).items():
        layer.register_buffer(name, x)
    x = torch.randn(3, inputs)
    assert patch(layer).swapped == {"": "compressed-tensors"}
    close(layer(x), x.double() @ torch.from_numpy(w.dense()).T + layer.bias)
    assert len(calls) == 1


def compressed_8_bits(w):
    """The same numbers, less 8, in bytes: 128 more than they are, four to a word."""

    def words(rows):
        padded = np.zeros((len(rows), -(-rows.shape[1] // 4) * 4), np.uint8)
        padded[:, : rows.shape[1]] = rows - 8 + 128
        return padded.view(np.int32)

    return {
        "weight_packed": words(w.q),
        "weight_scale": np.ascontiguousarray(w.scales.T),
        "weight_zero_point": np.ascontiguousarray(words(w.zeros).T),
        "weight_shape": np.array(w.q.shape),
    }


def test_compressed_tensors_is_served_as_from_pretrained_loads_it(calls, tmp_path):
    model, plain = compressed_model(symmetric=True)
    groups = {"0": {"targets": ["Linear"], "weights": model.model.layers[0].mlp.up_proj.quantization_scheme.weights}}
    groups["0"]["weights"] = groups["0"]["weights"].model_dump(mode="json", exclude_none=True)
    model.config.quantization_config = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "config_groups": groups, "ignore": ["lm_head"],
    }  # fmt: skip
    loaded = saved_and_loaded(
        model, tmp_path, quantization_config=transformers.CompressedTensorsConfig(dequantize=False)
    )
    state = list(loaded.state_dict())
    assert_serves(loaded, plain, "compressed-tensors", calls)
    assert list(loaded.state_dict()) == state, "it has been unpacked"
    unpatch(loaded)
    assert torch.equal(generate(loaded), generate(plain))
    assert list(loaded.state_dict()) != state


def test_unpatch_lets_compressed_tensors_unpack_a_model(calls):
    model, plain = compressed_model()
    model.ct_decompress_hook = model.register_forward_pre_hook(lambda *_: None)
    hook = model.ct_decompress_hook
    patch(model)
    assert not hasattr(model, "ct_decompress_hook")
    unpatch(model)
    assert model.ct_decompress_hook.id in model._forward_pre_hooks and model.ct_decompress_hook is not hook


def test_layers_that_compressed_tensors_unpacked_are_left():
    model, plain = compressed_model()
    done = patch(nn.ModuleDict({"model": plain.model, "own": nn.Linear(40, 7)}))
    assert list(done.swapped) == ["own"] and len(done.left) == LAYERS - 1
    assert set(done.left.values()) == {"compressed-tensors has unpacked its weight: patch it before its first call"}


# ---- torchao ------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("name", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
@pytest.mark.parametrize("inputs", [40, 1000])
def test_torchao_of_8_bits(name, inputs, calls):
    quantization = pytest.importorskip("torchao.quantization")
    model = nn.Sequential(nn.Linear(inputs, 7)).bfloat16()
    quantization.quantize_(model, getattr(quantization, name)())
    weight, x = model[0].weight, torch.randn(3, inputs)
    want = x.double() @ (weight.qdata.double() * weight.scale.double()).T + model[0].bias
    assert patch(model).swapped == {"0": type(weight).__name__}
    close(model(x), want)
    assert len(calls) == 1 and model[0].weight is weight


@torch.no_grad()
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_torchao_of_bytes(bits, symmetric, calls):
    quantization = pytest.importorskip("torchao.quantization")
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.quant_primitives import MappingType

    config = quantization.IntxWeightOnlyConfig(
        weight_dtype=getattr(torch, f"int{bits}"), granularity=PerGroup(32),
        mapping_type=MappingType.SYMMETRIC if symmetric else MappingType.ASYMMETRIC,
    )  # fmt: skip
    model = nn.Sequential(nn.Linear(96, 7))
    quantization.quantize_(model, config)
    weight, x = model[0].weight, torch.randn(3, 96)
    want = x.double() @ weight.dequantize().double().T + model[0].bias
    assert patch(model).swapped == {"0": "IntxUnpackedToInt8Tensor"}
    close(model(x), want)
    (arguments,) = calls
    assert arguments[1].dtype is {4: torch.uint8, 8: torch.int8}[bits] and arguments[-1]["group"] == 32
    assert (arguments[-1]["zeros"] is None) == symmetric


@torch.no_grad()
@pytest.mark.parametrize(("outputs", "inputs", "group"), [(7, 96, 32), (8, 1000, 128)])
def test_torchao_of_4_bits(outputs, inputs, group, calls):
    quantization = pytest.importorskip("torchao.quantization")
    w = Weight(outputs, inputs, group)
    w.scales = torch.from_numpy(w.scales).bfloat16().half().numpy()
    plain, tiled = as_torch(plain_int32(w)), as_torch(tiles(w))
    model = nn.Sequential(nn.Linear(inputs, outputs), nn.Linear(inputs, outputs))
    weights = (
        quantization.Int4PlainInt32Tensor(plain["qdata"], plain["scale"], plain["zero_point"], [1, group], w.q.shape),
        quantization.Int4TilePackedTo4dTensor(tiled["qdata"], tiled["scale_and_zero"], [1, group], w.q.shape),
    )
    for layer, weight in zip(model, weights, strict=True):
        layer.weight = nn.Parameter(weight, requires_grad=False)
    assert patch(model).swapped == {"0": "plain_int32", "1": "tile_packed_to_4d"}
    x = torch.randn(3, inputs)
    for layer in model:
        close(layer(x), x.double() @ torch.from_numpy(w.dense()).T + layer.bias)


def test_other_weights_of_torchao_are_left():
    quantization = pytest.importorskip("torchao.quantization")
    w = Weight(7, 96, 32)
    arrays = as_torch(plain_int32(w))
    weights = [
        quantization.Int4PlainInt32Tensor(arrays["qdata"], arrays["scale"], arrays["zero_point"], [1, 32], w.q.shape, torch.ones(96)),
        quantization.Int4TilePackedTo4dTensor(*(as_torch(tiles(w, 0.4))[x] for x in ("qdata", "scale_and_zero")), [1, 32], w.q.shape),
        quantization.Int4Tensor(arrays["qdata"].view(torch.int8), arrays["scale"], arrays["scale"], [1, 32], w.q.shape),
    ]  # fmt: skip
    model = nn.ModuleList([nn.Linear(96, 7) for _ in range(4)])
    for layer, weight in zip(model, weights, strict=False):
        layer.weight = nn.Parameter(weight, requires_grad=False)
    left = patch(model).left
    assert left["0"] == "torchao's Int4PlainInt32Tensor has a scale for inputs"
    assert "scale_and_zero must have zeros that are whole multiples" in left["1"]
    assert left["2"] == "torchao's Int4Tensor is a weight that linear does not read"
    assert set(left) == {"0", "1", "2"}


# ---- Transformers -------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("block", few([(128, 128), (32, 64), (5, 32), None], (128, 128), None))
@pytest.mark.parametrize(("outputs", "inputs"), [(7, 96), (300, 1000)])
def test_fp8_in_blocks(block, outputs, inputs, calls):
    fp8 = pytest.importorskip("transformers.integrations.finegrained_fp8")
    layer = fp8.FP8Linear(inputs, outputs, block, has_bias=True).requires_grad_(False)
    layer.weight.data = torch.randn(outputs, inputs).to(torch.float8_e4m3fn)
    layer.weight_scale_inv.data.uniform_(0.5, 2)
    layer.bias.data.normal_()
    scales = layer.weight_scale_inv
    if block is not None:
        rows, columns = torch.arange(outputs) // block[0], torch.arange(inputs) // block[1]
        scales = scales[rows][:, columns]
    x = torch.randn(3, inputs)
    assert patch(layer).swapped == {"": "fp8"}
    close(layer(x), x.double() @ (layer.weight.double() * scales).T + layer.bias)
    assert len(calls) == 1


@torch.no_grad()
@pytest.mark.parametrize("name", ["compressed_tensors.CompressedTensorsFP8Linear", "fbgemm_fp8.FbgemmFp8Linear"])
def test_fp8_in_rows(name, calls):
    module, _, name = name.partition(".")
    made = getattr(pytest.importorskip(f"transformers.integrations.{module}"), name)
    layer = made(96, 7, True).requires_grad_(False)
    layer.weight.data = torch.randn(7, 96).to(torch.float8_e4m3fn)
    layer.weight_scale.data.uniform_(0.5, 2)
    layer.bias.data.normal_()
    x = torch.randn(3, 96)
    assert patch(layer).swapped == {"": "fp8"}
    close(layer(x), x.double() @ (layer.weight.double() * layer.weight_scale.view(7, 1)).T + layer.bias)
    assert len(calls) == 1
