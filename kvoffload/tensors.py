"""What a tensor of any framework is in memory: address, shape and strides in bytes, device.

No framework is imported: a tensor can only be of one that its user has imported already.
"""

from __future__ import annotations

import ctypes
import operator
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvoffload.errors import InvalidInput, UnsupportedLayout

_DLPACK_DEVICES = {1: "host", 3: "host", 2: "cuda", 13: "cuda"}  # CPU, pinned; CUDA, managed
_POINTER_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL


@dataclass(frozen=True)
class RawTensor:
    """Memory described by hand. Whoever makes one keeps the memory alive as long as its layout is used.

    address: of the first byte of entry (0, 0, ...). shape: entries per dimension. strides_bytes: bytes from one entry
    to the next, one per dimension. item_bytes: bytes of one entry. device: "host" or "cuda:N".
    Raises InvalidInput for values that are no integers below 2^63, or another device.

    >>> RawTensor(4096, (100, 32768), (32768, 1)).device
    'host'
    """

    address: int
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    item_bytes: int = 1
    device: str = "host"

    def __post_init__(self) -> None:
        for field in ("address", "item_bytes"):
            object.__setattr__(self, field, _integers([getattr(self, field)], field)[0])
        for field in ("shape", "strides_bytes"):
            object.__setattr__(self, field, _integers(getattr(self, field), field))
        if re.fullmatch(r"host|cuda:\d+", str(self.device)) is None:
            raise InvalidInput(f"device is {self.device!r}; it must be 'host' or 'cuda:N'")
        if self.address < 0:
            raise InvalidInput(f"address is {self.address}; it must not be negative")


def _integers(values: Iterable[Any], field: str) -> tuple[int, ...]:
    try:
        result = tuple(operator.index(value) for value in values)
    except TypeError:
        raise InvalidInput(f"{field} is {values!r}; it must be made of integers") from None
    if any(not -(2**63) <= value < 2**63 for value in result):
        raise InvalidInput(f"{field} is {values!r}; its values must be below 2^63")
    return result


def describe(tensor: Any) -> tuple[RawTensor, Any]:
    """The memory of a tensor of any framework, and the object that keeps it alive.

    Raises UnsupportedLayout where the memory cannot be told (sparse, read-only, parts of a byte, unknown device).
    """
    torch, interface = sys.modules.get("torch"), getattr(tensor, "__array_interface__", None)
    if isinstance(tensor, RawTensor):
        return tensor, tensor
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _from_torch(torch, tensor), tensor
    if isinstance(interface, dict):
        return _from_interface(interface, lambda address: "host"), tensor
    if isinstance(interface := getattr(tensor, "__cuda_array_interface__", None), dict):
        return _from_interface(interface, lambda address: _cuda_device(tensor, address)), tensor
    if hasattr(tensor, "__dlpack__") and hasattr(tensor, "__dlpack_device__"):
        return _from_dlpack(tensor)
    raise UnsupportedLayout(
        f"a {type(tensor).__name__} is no tensor: give a torch, cupy or numpy tensor, an object with __dlpack__, "
        "__cuda_array_interface__ or __array_interface__, or a kvoffload.RawTensor"
    )


def current_stream_of(tensor: Any, device: str) -> Callable[[], int]:
    """A function that returns the handle of the current stream of the tensor's framework on `device` (0: default)."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if device == "host":
        return lambda: 0
    index = int(device.removeprefix("cuda:"))
    if torch is not None and isinstance(tensor, torch.Tensor):
        # What torch's own generated code calls: without a Stream object, a tenth of the time.
        if raw_stream := getattr(torch._C, "_cuda_getCurrentRawStream", None):
            return lambda: int(raw_stream(index))
        return lambda: int(torch.cuda.current_stream(index).cuda_stream)
    if cupy is not None and isinstance(tensor, cupy.ndarray):
        return lambda: int(cupy.cuda.get_current_stream(index).ptr)
    return lambda: 0


def _from_torch(torch: Any, tensor: Any) -> RawTensor:
    kind, shape = tensor.device.type, tuple(tensor.shape)
    if tensor.layout != torch.strided:
        raise UnsupportedLayout(f"shape {shape}: a torch tensor of layout {tensor.layout}; it must be torch.strided")
    if kind not in ("cpu", "cuda"):
        raise UnsupportedLayout(f"shape {shape}: a torch tensor on {kind!r}; it must be on 'cpu' or 'cuda'")
    item = tensor.element_size()
    device = "host" if kind == "cpu" else f"cuda:{tensor.device.index}"
    return RawTensor(tensor.data_ptr(), shape, tuple(step * item for step in tensor.stride()), item, device)


def _from_interface(interface: dict[str, Any], device_at: Callable[[int], str]) -> RawTensor:
    shape, data, dtype = tuple(interface["shape"]), interface.get("data"), np.dtype(interface["typestr"])
    if dtype.hasobject or interface.get("mask") is not None or not isinstance(data, tuple):
        raise UnsupportedLayout(f"shape {shape}: arrays of objects, masked arrays and arrays without an address")
    address, read_only = data
    if read_only:
        raise UnsupportedLayout(f"shape {shape}: the array is read-only, but loads write into it")
    strides = interface.get("strides") or _contiguous(shape, dtype.itemsize)
    return RawTensor(address, shape, tuple(strides), dtype.itemsize, device_at(address))


def _contiguous(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    strides = [item_bytes] * len(shape)
    for dim in reversed(range(len(shape) - 1)):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return tuple(strides)


def _cuda_device(tensor: Any, address: int) -> str:
    """__cuda_array_interface__ does not say which GPU; the tensor itself or the driver does."""
    if hasattr(tensor, "__dlpack_device__"):
        return f"cuda:{int(tensor.__dlpack_device__()[1])}"
    ordinal = ctypes.c_int(-1)
    try:
        query = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
        error = query(ctypes.byref(ordinal), _POINTER_DEVICE_ORDINAL, ctypes.c_uint64(address))
    except OSError:
        error = -1
    if error != 0 or ordinal.value < 0:
        raise UnsupportedLayout(f"the driver knows no GPU for address {address:#x}; describe it by kvoffload.RawTensor")
    return f"cuda:{ordinal.value}"


class _DLTensor(ctypes.Structure):
    """The start of DLPack's DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),  # in items; null: contiguous
        ("byte_offset", ctypes.c_uint64),
    )


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _from_dlpack(tensor: Any) -> tuple[RawTensor, Any]:
    """Read here and not by numpy, which knows neither bfloat16 nor 8-bit floats. The capsule keeps the memory alive."""
    kind = _DLPACK_DEVICES.get(int(tensor.__dlpack_device__()[0]))
    if kind is None:
        raise UnsupportedLayout(f"DLPack device {tensor.__dlpack_device__()}; it must be CPU or CUDA memory")
    try:  # -1: no synchronisation, as only the address is taken
        capsule = tensor.__dlpack__(stream=-1) if kind == "cuda" else tensor.__dlpack__()
        address = _capsule_pointer(capsule, b"dltensor")
    except (BufferError, TypeError, ValueError) as error:
        raise UnsupportedLayout(f"DLPack of {type(tensor).__name__}: {error}") from error
    source = _DLTensor.from_address(address)
    shape, bits = tuple(source.shape[: source.ndim]), source.bits * source.lanes
    if bits % 8:
        raise UnsupportedLayout(f"shape {shape}: items of {bits} bits; they must be whole bytes")
    item = bits // 8
    strides = tuple(step * item for step in source.strides[: source.ndim]) if source.strides else None
    device = "host" if kind == "host" else f"cuda:{source.device_id}"
    first = (source.data or 0) + source.byte_offset
    return RawTensor(first, shape, strides or _contiguous(shape, item), item, device), (tensor, capsule)
