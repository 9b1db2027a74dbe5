"""A stand-in for torch on xpu that hands its tensors over as torch does: by DLPack's C exchange interface."""

from __future__ import annotations

import ctypes
from typing import Any

import dpctl
import torch
import usm

KDL_ONE_API = 14
_CODES = {torch.float32: (2, 32), torch.float16: (2, 16), torch.bfloat16: (4, 16), torch.int32: (0, 32)}


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


VOIDP = ctypes.POINTER(ctypes.c_void_p)
ALLOCATE = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(DLTensor), VOIDP, ctypes.c_void_p, ctypes.c_void_p)
FROM_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, VOIDP)
TO_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, VOIDP)
VIEW = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(DLTensor))
STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, VOIDP)


class ExchangeApi(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ALLOCATE),
        ("managed_from_object", FROM_OBJECT),
        ("to_object", TO_OBJECT),
        ("view_from_object", VIEW),
        ("current_stream", STREAM),
    )


def tensor_type(queue: dpctl.SyclQueue) -> type:
    """A tensor class whose current stream is `queue`; `streams_asked` counts how often it was asked for."""
    made: dict[int, Any] = {}

    class Tensor:
        streams_asked = 0

        def __init__(self, values: torch.Tensor) -> None:
            self.array = usm.UsmArray(values.contiguous(), queue, "device")
            self.dtype, self.shape = values.dtype, values.shape
            self._shape = (ctypes.c_int64 * values.dim())(*values.shape)
            self._strides = (ctypes.c_int64 * values.dim())(*values.contiguous().stride())

        def cpu(self) -> torch.Tensor:
            return usm.read(self.array)

    def view(address: int, out: Any) -> int:
        tensor = ctypes.cast(address, ctypes.py_object).value
        t = out.contents
        t.data, t.device_type, t.device_id = tensor.array.memory._pointer, KDL_ONE_API, 0
        t.ndim, (t.code, t.bits), t.lanes, t.byte_offset = len(tensor.shape), _CODES[tensor.dtype], 1, 0
        t.shape, t.strides = tensor._shape, tensor._strides
        return 0

    def allocate(prototype: Any, out: Any, context: int, set_error: int) -> int:
        p = prototype.contents
        assert p.device_type == KDL_ONE_API
        dtype = next(d for d, code in _CODES.items() if code == (p.code, p.bits))
        tensor = Tensor(torch.full([p.shape[i] for i in range(p.ndim)], 7).to(dtype))
        made[id(tensor)] = tensor
        out[0] = id(tensor)
        return 0

    def to_object(handle: int, out: Any) -> int:
        tensor = made.pop(handle)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))
        out[0] = id(tensor)
        return 0

    def current_stream(device_type: int, device_id: int, out: Any) -> int:
        assert (device_type, device_id) == (KDL_ONE_API, 0)
        Tensor.streams_asked += 1
        out[0] = queue.addressof_ref()
        return 0

    api = ExchangeApi(
        1,
        0,
        None,
        ALLOCATE(allocate),
        FROM_OBJECT(lambda *_: -1),
        TO_OBJECT(to_object),
        VIEW(view),
        STREAM(current_stream),
    )
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype, new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    name = ctypes.create_string_buffer(b"dlpack_exchange_api")
    Tensor.__dlpack_c_exchange_api__ = new_capsule(ctypes.addressof(api), ctypes.addressof(name), None)
    Tensor._keep = (api, name)
    return Tensor
