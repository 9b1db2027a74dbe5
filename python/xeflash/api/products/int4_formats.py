"""Formats of 4-bit weights in checkpoints, each read as w[n, k] = s (q - z)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from xeflash.api.products.int4_arrays import cast, contiguous, dtype_name, is_ours, kind, nibbles, permuted

FUNCTION = "pack_int4"
SCALES = ("float32", "float16", "bfloat16")
# Column c of eight lies in this nibble of AWQ's.
_AWQ_NIBBLES = [0, 4, 1, 5, 2, 6, 3, 7]
Tensors = Mapping[str, Any]


class Plain(NamedTuple):
    """A weight without any packing."""

    q: Any  # uint8 (N, K), in 0..15
    scales: Any  # (G, N)
    zeros: Any  # integers (G, N), in -128..127; None: 8
    g_idx: Any  # the group of each input, (K,); None: they follow each other


def need(name: str, array: Any, rank: int, *dtypes: str) -> Any:
    """Returns the array if it has this rank and one of these dtypes; else raises an error."""
    if len(array.shape) != rank:
        raise ValueError(
            f"{FUNCTION}: {name} must have {rank} dimensions, got {len(array.shape)}; "
            f"{name}.shape = {list(array.shape)}"
        )
    if dtype_name(array) not in dtypes:
        raise TypeError(f"{FUNCTION}: {name} must have the dtype {' or '.join(dtypes)}, got {dtype_name(array)}")
    return array


def need_shape(name: str, array: Any, why: str, *want: int) -> Any:
    """Returns the array if it has this shape; else raises an error that says why it must."""
    if tuple(array.shape) != want:
        raise ValueError(f"{FUNCTION}: {name} must have the shape {list(want)} {why}, got {list(array.shape)}")
    return array


def _from_gptq(t: Tensors, version: int | None) -> Plain:
    qweight, scales = need("qweight", t["qweight"], 2, "int32"), need("scales", t["scales"], 2, *SCALES)
    words, outputs = qweight.shape
    need_shape("scales", scales, "(groups, columns of qweight)", scales.shape[0], outputs)
    inputs = 8 * words
    if "g_idx" in t:
        inputs = len(need("g_idx", t["g_idx"], 1, "int32", "int64"))
        if not 8 * words - 8 < inputs <= 8 * words:
            raise ValueError(
                f"{FUNCTION}: g_idx must have an entry for each of the 8 inputs in a row of qweight ({8 * words}) of "
                f"4 bits, got {inputs}; qweight.shape = {list(qweight.shape)}"
            )
    zeros = None
    if "qzeros" in t:
        qzeros = need("qzeros", t["qzeros"], 2, "int32")
        need_shape("qzeros", qzeros, "(groups, columns of qweight / 8)", scales.shape[0], -(-outputs // 8))
        zeros = cast(nibbles(qzeros)[:, :outputs], "int8")
        zeros = zeros + (2 - _gptq_version(zeros, version))
    return Plain(nibbles(qweight.T)[:, :inputs], scales, zeros, t.get("g_idx"))


def _gptq_version(zeros: Any, version: int | None) -> int:
    """Returns 1 where zeros are stored less 1, else 2; the values of symmetric weights tell it."""
    if version == 2 or bool((zeros == 8).all()):
        return 2
    if version == 1 or bool((zeros == 7).all()):
        return 1
    raise ValueError(
        f'{FUNCTION}: format must be "gptq" (zeros are stored less 1) or "gptq_v2" where qzeros are not all 7 or all '
        f"8, got None; qzeros has {int(zeros.min())}..{int(zeros.max())}"
    )


def _from_awq(t: Tensors) -> Plain:
    qweight, scales = need("qweight", t["qweight"], 2, "int32"), need("scales", t["scales"], 2, *SCALES)
    inputs, words = qweight.shape
    groups, outputs = scales.shape
    if outputs != 8 * words:
        raise ValueError(
            f"{FUNCTION}: scales must have 8 columns per column of qweight ({8 * words}) of 4 bits, got {outputs}; "
            f"qweight.shape = {[inputs, words]}"
        )
    qzeros = need("qzeros", t["qzeros"], 2, "int32")
    need_shape("qzeros", qzeros, "(groups, columns of qweight)", groups, words)
    q, zeros = (nibbles(x).reshape(len(x), words, 8)[:, :, _AWQ_NIBBLES].reshape(len(x), -1) for x in (qweight, qzeros))
    return Plain(q.T, scales, zeros, None)


def _from_compressed_tensors(t: Tensors) -> Plain:
    words = need("weight_packed", t["weight_packed"], 2, "int32")
    outputs, inputs = len(words), 8 * words.shape[1]
    if "weight_shape" in t:
        said = tuple(int(n) for n in t["weight_shape"])
        if len(said) != 2 or said[0] != outputs or not inputs - 8 < said[1] <= inputs:
            raise ValueError(
                f"{FUNCTION}: weight_shape must be {[outputs, inputs]}, of 8 inputs of 4 bits in an int32, or up to 7 "
                f"inputs less, got {list(said)}; weight_packed.shape = {list(words.shape)}"
            )
        inputs = said[1]
    scale = t["weight_scale"]
    if len(scale.shape) < 2:  # one scale for the whole weight, or for each row
        scale = scale.reshape(-1, 1)
    scale = need("weight_scale", scale, 2, *SCALES)
    if len(scale) == 1 and scale.shape[1] == 1:
        scale = scale[[0] * outputs]
    groups = scale.shape[1]
    need_shape("weight_scale", scale, "(rows of weight_packed, groups)", outputs, groups)
    zeros = None
    if "weight_zero_point" in t:
        zeros = t["weight_zero_point"]
        if dtype_name(zeros) == "int8":  # zeros are stored as they are, for numbers -8..7
            need_shape("weight_zero_point", zeros, "(rows of weight_packed, groups)", outputs, groups)
            zeros = zeros.T + 8
        else:
            need("weight_zero_point", zeros, 2, "int32", "int8")
            need_shape("weight_zero_point", zeros, "(rows of weight_packed / 8, groups)", -(-outputs // 8), groups)
            zeros = nibbles(zeros.T)[:, :outputs]
    g_idx = t.get("weight_g_idx")
    if g_idx is not None and bool((g_idx == -1).all()):  # nothing was put there
        g_idx = None
    return Plain(nibbles(words)[:, :inputs], scale.T, zeros, g_idx)


def _cut(t: Tensors, outputs: int, inputs: int) -> tuple[int, int]:
    """Returns the (outputs, inputs) that torchao's tensor states; its padded arrays may exceed them."""
    said = tuple(int(n) for n in t.get("shape", (outputs, inputs)))
    if len(said) != 2 or not (0 < said[0] <= outputs and 0 < said[1] <= inputs):
        raise ValueError(f"{FUNCTION}: shape must be at most that of qdata, {[outputs, inputs]}, got {list(said)}")
    return said


def _from_plain_int32(t: Tensors) -> Plain:
    qdata, scale = need("qdata", t["qdata"], 2, "int32"), need("scale", t["scale"], 2, *SCALES)
    outputs, inputs = _cut(t, len(qdata), 8 * qdata.shape[1])
    need_shape("scale", scale, "(groups, rows of qdata)", len(scale), len(qdata))
    zeros = need("zero_point", t["zero_point"], 2, "int8")
    need_shape("zero_point", zeros, "(groups, rows of qdata)", *scale.shape)
    return Plain(nibbles(qdata)[:outputs, :inputs], scale[:, :outputs], zeros[:, :outputs], None)


def _from_tiles(t: Tensors) -> Plain:
    """Reads w = s (q - 8) + z with z in floating point as a weight with zeros 8 - z / s, which must be whole."""
    qdata, both = need("qdata", t["qdata"], 4, "int32"), need("scale_and_zero", t["scale_and_zero"], 3, *SCALES)
    tiles, tiles_k, _, words = qdata.shape
    need_shape("qdata", qdata, "(outputs / 8, inputs / 128, 32, 4)", tiles, tiles_k, 32, 4)
    need_shape("scale_and_zero", both, "(groups, 8 x rows of qdata, 2)", len(both), 8 * tiles, 2)
    inputs = 128 * tiles_k
    if len(both) == 0 or inputs % len(both):
        raise ValueError(
            f"{FUNCTION}: scale_and_zero must have a row for each group of the inputs of qdata ({inputs}), "
            f"got {len(both)}"
        )
    group = inputs // len(both)
    # Axes of the nibbles: tile of outputs, tile of inputs, output, pair of inputs, two tiles of 16 inputs; then odd or
    # even, tile of 16, upper or lower half of it.
    q = nibbles(qdata).reshape(tiles, tiles_k, 8, 4, words, 2, 2, 2)
    q = contiguous(permuted(q, 0, 2, 1, 4, 6, 7, 3, 5)).reshape(8 * tiles, inputs)
    outputs, inputs = _cut(t, *q.shape)
    both = both[: -(-inputs // group), :outputs]
    scales, zeros = both[:, :, 0], cast(both[:, :, 1], "float32")
    wide = cast(scales, "float32")
    whole = zeros / (wide + cast(wide == 0, "float32"))
    whole = whole.round()
    step = {"float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}[dtype_name(both)]
    off = abs(zeros - wide * whole)
    if bool((off > step * abs(zeros)).any()):
        worst = float((off / (abs(wide) + cast(wide == 0, "float32"))).max())
        raise ValueError(
            f"{FUNCTION}: scale_and_zero must have zeros that are whole multiples of their scales, rounded to "
            f"{dtype_name(both)}, got one that is {worst:.3g} of a scale away from a multiple"
        )
    return Plain(q[:outputs, :inputs], scales, cast(8 - whole, "int32"), None)


def _from_plain(t: Tensors) -> Plain:
    q = need("q", t["q"], 2, "uint8", "int8", "int16", "int32", "int64")
    if bool(((q < 0) | (q > 15)).any()):
        raise ValueError(f"{FUNCTION}: q must be in 0..15, got {int(q.min())}..{int(q.max())}")
    scales, zeros = t["scales"], t.get("zeros")
    if len(scales.shape) == 1:
        scales = scales[None]
    need_shape("scales", need("scales", scales, 2, *SCALES), "(groups, rows of q)", len(scales), len(q))
    if zeros is not None:
        zeros = zeros[None] if len(zeros.shape) == 1 else zeros
        need("zeros", zeros, 2, "uint8", "int8", "int16", "int32", "int64")
        need_shape("zeros", zeros, "of scales", *scales.shape)
    return Plain(cast(q, "uint8"), scales, zeros, t.get("g_idx"))


class Format(NamedTuple):
    """The tensors of a format, and the function that reads them."""

    read: Callable[[Tensors], Plain]
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


_GPTQ = ("qweight", "scales"), ("qzeros", "g_idx")
FORMATS = {
    "gptq": Format(lambda t: _from_gptq(t, 1), *_GPTQ),
    "gptq_v2": Format(lambda t: _from_gptq(t, 2), *_GPTQ),
    "awq": Format(_from_awq, ("qweight", "qzeros", "scales")),
    "compressed-tensors": Format(
        _from_compressed_tensors,
        ("weight_packed", "weight_scale"),
        ("weight_shape", "weight_zero_point", "weight_g_idx"),
    ),
    "plain_int32": Format(_from_plain_int32, ("qdata", "scale", "zero_point"), ("shape",)),
    "tile_packed_to_4d": Format(_from_tiles, ("qdata", "scale_and_zero"), ("shape",)),
    "plain": Format(_from_plain, ("q", "scales"), ("zeros", "g_idx")),
}
_UNKNOWN_GPTQ = Format(lambda t: _from_gptq(t, None), *_GPTQ)

_REFUSED = {
    "nf4": "its 16 values are not evenly spaced",
    "fp4": "its 16 values are not evenly spaced",
    "gguf": "its scales lie between its nibbles",
    "awq_gemv": "it has another order of nibbles, scales and zeros than AWQ's GEMM form",
}
# Names that the tensors of these have in checkpoints.
_TOLD_BY = {"absmax": "nf4", "quant_map": "nf4", "nested_absmax": "nf4", "nested_quant_map": "nf4"}


def read(format: str | None, tensors: Tensors) -> Plain:
    """Reads the weight that tensors of a format hold; if the format is None, their names and shapes decide it."""
    if format is not None and not isinstance(format, str):
        raise TypeError(f"{FUNCTION}: format must be a name, or None, got {type(format).__name__}")
    told = next((_TOLD_BY[name] for name in tensors if name in _TOLD_BY), format)
    if told in _REFUSED:
        raise NotImplementedError(f'{FUNCTION}: format must not be "{told}": {_REFUSED[told]}')
    if format is not None and format not in FORMATS:
        raise ValueError(f"{FUNCTION}: format must be one of {', '.join(FORMATS)}, got {format!r}")
    names = [format] if format else list(FORMATS)
    fit = [n for n in names if {*FORMATS[n].required} <= {*tensors} <= {*FORMATS[n].required, *FORMATS[n].optional}]
    if not fit:
        rows = (FORMATS[n].required + tuple(f"[{x}]" for x in FORMATS[n].optional) for n in names)
        raise TypeError(
            f"{FUNCTION}: tensors must be {', or '.join(' '.join(row) for row in dict.fromkeys(rows))}; "
            f"got {' '.join(tensors) or 'none'}"
        )
    for name, array in tensors.items():
        if name not in ("shape", "weight_shape") and not is_ours(array):
            raise TypeError(
                f"{FUNCTION}: {name} must be a dense torch tensor with values or a numpy array, got "
                f"{type(array).__name__}"
            )
    arrays = {name: array for name, array in tensors.items() if name not in ("shape", "weight_shape")}
    first = next(iter(arrays))
    for name, array in arrays.items():
        if kind(array) != kind(arrays[first]):
            raise ValueError(
                f"{FUNCTION}: {name} must be where {first} is, {'.'.join(kind(arrays[first]))}, got "
                f"{'.'.join(kind(array))}"
            )
    return (_by_shape(tensors) if "qweight" in tensors and format is None else FORMATS[fit[0]]).read(tensors)


def _by_shape(t: Tensors) -> Format:
    """Returns GPTQ or AWQ, which have the same names, by the shapes of the tensors."""
    qweight, scales = need("qweight", t["qweight"], 2, "int32"), need("scales", t["scales"], 2, *SCALES)
    if qweight.shape[1] == scales.shape[1]:
        return _UNKNOWN_GPTQ
    if 8 * qweight.shape[1] == scales.shape[1]:
        return FORMATS["awq"]
    if qweight.shape[0] == scales.shape[0]:
        raise NotImplementedError(f'{FUNCTION}: format must not be "awq_gemv": {_REFUSED["awq_gemv"]}')
    raise ValueError(
        f"{FUNCTION}: scales must have as many columns as qweight (GPTQ), or 8 times as many (AWQ), of 4 bits, got "
        f"{scales.shape[1]}; qweight.shape = {list(qweight.shape)}"
    )
