"""What from_tensors takes: torch, numpy, DLPack, the array interfaces and raw pointers; and what it refuses."""

import ctypes
import gc
import sys
import types
import weakref

import numpy as np
import pytest

import kvoffload as kv


def zeros(*shape, dtype=np.float16):
    return np.zeros(shape, dtype)


def read_only():
    array = zeros(4, 8)
    array.flags.writeable = False
    return array


BAD_TENSORS = [
    (list, "kv_caches is empty"),
    (lambda: {"k": 7}, "tensor 'k': a int is no tensor"),
    (lambda: {"k": None}, "a NoneType is no tensor"),
    (lambda: {"k": zeros(4, 8)[::-1]}, r"tensor 'k': shape \(4, 8\), strides \(-16, 2\) bytes"),
    (lambda: {"k": np.lib.stride_tricks.as_strided(zeros(8), (4, 8), (4, 2))}, "blocks overlap"),
    (lambda: {"k": zeros(4, 0)}, "dimension 1 is empty"),
    (lambda: {"k": zeros()}, r"shape \(\)"),
    (lambda: {"k": read_only()}, "read-only"),
    (lambda: {"k": np.zeros((4, 8), object)}, "arrays of objects"),
    (
        lambda: [zeros(4, 8), kv.RawTensor(4096, (4, 8), (8, 1), 1, "cuda:1")],
        "0 is on host and tensor 1 on cuda:1",
    ),
    (lambda: kv.RawTensor(4096, (4, 8), (8,)), "differ in length"),
    (lambda: kv.RawTensor(4096, (4, 2**62), (2**62, 1)), "more than 2\\^63 bytes"),
    (lambda: kv.RawTensor(4096, (4, 2**63), (8, 1)), "below 2\\^63"),
    (lambda: kv.RawTensor(4096, (4, 8.5), (8, 1)), "integers"),
    (lambda: kv.RawTensor(-1, (4, 8), (8, 1)), "must not be negative"),
    (lambda: kv.RawTensor(0, (4, 8), (8, 1)), "address is 0"),
    (lambda: kv.RawTensor(4096, (4, 8), (8, 1), device="gpu"), "device is 'gpu'"),
]


@pytest.mark.parametrize(("make", "message"), BAD_TENSORS, ids=lambda value: value if isinstance(value, str) else "")
def test_bad_tensors_are_refused(make, message):
    with pytest.raises(kv.InvalidInput, match=message):
        kv.KVLayout.from_tensors(make(), tokens_per_block=4)


class Exports:
    """An object of a framework of which nothing but these attributes is known."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class DLPackOnly:
    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class CudaCapsule:
    """A DLPack export of CUDA memory, made by hand as no GPU is needed to read it."""

    def __init__(self, shape, strides, bits, byte_offset=0, device=(2, 3)):
        shape_array = (ctypes.c_int64 * len(shape))(*shape)
        stride_array = (ctypes.c_int64 * len(shape))(*strides) if strides else None
        # data; device type, id, ndim; type code, bits, lanes; shape, strides; byte offset; context, deleter
        fields = [ctypes.c_void_p, *[ctypes.c_int32] * 3, ctypes.c_uint8, ctypes.c_uint8, ctypes.c_uint16]
        fields += [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p]
        managed = type("Managed", (ctypes.Structure,), {"_fields_": [(f"f{i}", f) for i, f in enumerate(fields)]})
        addresses = [ctypes.cast(a, ctypes.c_void_p) if a else None for a in (shape_array, stride_array)]
        self.managed = managed(2**40, *device, len(shape), 4, bits, 1, *addresses, byte_offset)
        self.device, self.keep, self.streams = device, (shape_array, stride_array), []

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", None)

    def __dlpack_device__(self):
        return self.device


def page_of(tensor, **options):
    layout = kv.KVLayout.from_tensors(tensor, tokens_per_block=4, **options)
    (page,) = layout.groups[0].geometry.pages
    return layout.device, page.address, page.block_stride, page.bytes


def test_numpy_raw_pointers_and_dlpack_say_the_same():
    array = zeros(20, 4, 8)[2::2]
    expected = ("host", array.ctypes.data, 128, 64)
    assert page_of(array) == expected
    assert page_of(kv.RawTensor(array.ctypes.data, array.shape, array.strides, 2)) == expected
    assert page_of(DLPackOnly(array)) == expected
    assert page_of(Exports(__array_interface__=array.__array_interface__)) == expected
    with pytest.raises(kv.UnsupportedLayout, match="DLPack of DLPackOnly"):
        kv.KVLayout.from_tensors(DLPackOnly(read_only()), tokens_per_block=4)


def test_cuda_array_interface():
    exported = {"shape": (10, 4, 8), "typestr": "<f2", "data": (2**40, False), "version": 3, "strides": None}
    device = {"__dlpack_device__": lambda: (2, 1)}
    assert page_of(Exports(__cuda_array_interface__=exported, **device)) == ("cuda:1", 2**40, 64, 64)
    wide = {**exported, "strides": (128, 16, 2)}
    assert page_of(Exports(__cuda_array_interface__=wide, **device)) == ("cuda:1", 2**40, 128, 64)
    with pytest.raises(kv.UnsupportedLayout, match="RawTensor"):  # no driver, or one that does not know the address
        page_of(Exports(__cuda_array_interface__=exported))


def test_cuda_dlpack_is_read_without_a_framework_and_without_waiting():
    tensor = CudaCapsule((10, 4, 8), (64, 8, 1), 16, byte_offset=256)
    assert page_of(tensor) == ("cuda:3", 2**40 + 256, 128, 64)
    assert tensor.streams == [-1]
    assert page_of(CudaCapsule((10, 4, 8), None, 8, device=(13, 0))) == ("cuda:0", 2**40, 32, 32)
    with pytest.raises(kv.UnsupportedLayout, match="items of 4 bits"):
        page_of(CudaCapsule((10, 4, 8), None, 4))
    with pytest.raises(kv.UnsupportedLayout, match="must be CPU or CUDA"):
        page_of(CudaCapsule((10, 4, 8), None, 8, device=(10, 0)))


def test_a_layout_keeps_its_tensors_alive():
    class Watched:
        def __init__(self, array):
            self.__array_interface__, self.array = array.__array_interface__, array

    cache = Watched(zeros(10, 8))
    alive = weakref.ref(cache)
    layout = kv.KVLayout.from_tensors([cache], tokens_per_block=4)
    del cache
    gc.collect()
    assert alive() is not None
    del layout
    gc.collect()
    assert alive() is None


def test_a_layout_keeps_what_dlpack_exported_alive():
    class Exporter:
        def __dlpack__(self):
            array = zeros(10, 8)
            self.alive = weakref.ref(array)
            return array.__dlpack__()

        def __dlpack_device__(self):
            return 1, 0

    exporter = Exporter()
    layout = kv.KVLayout.from_tensors(exporter, tokens_per_block=4)
    gc.collect()
    assert exporter.alive() is not None
    del layout
    gc.collect()
    assert exporter.alive() is None


def test_the_current_stream_is_that_of_the_framework(monkeypatch):
    assert kv.KVLayout.from_tensors(zeros(10, 8), tokens_per_block=4).current_stream() == 0
    raw = kv.RawTensor(4096, (4, 8), (8, 1), device="cuda:1")
    assert kv.KVLayout.from_tensors(raw, tokens_per_block=4).current_stream() == 0
    streams = types.SimpleNamespace(get_current_stream=lambda device: types.SimpleNamespace(ptr=1000 + device))
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(ndarray=CudaCapsule, cuda=streams))
    layout = kv.KVLayout.from_tensors(CudaCapsule((4, 8), None, 8), tokens_per_block=4)
    assert layout.current_stream() == 1003


def test_torch_tensors_of_every_type_and_view():
    torch = pytest.importorskip("torch")
    for dtype, size in [(torch.bfloat16, 2), (torch.float8_e4m3fn, 1), (torch.float16, 2), (torch.uint8, 1)]:
        tensor = torch.zeros((20, 4, 8), dtype=dtype)[4:]
        expected = ("host", tensor.data_ptr(), 32 * size, 32 * size)
        assert page_of(tensor) == expected
        assert page_of(tensor.permute(1, 0, 2), block_dim=1) == expected
    tensor = torch.zeros((10, 4, 8), dtype=torch.bfloat16)  # numpy has no such type
    assert page_of(DLPackOnly(tensor)) == ("host", tensor.data_ptr(), 64, 64)
    assert page_of(torch.nn.Parameter(tensor)) == ("host", tensor.data_ptr(), 64, 64)
    assert kv.KVLayout.from_tensors(tensor, tokens_per_block=4).current_stream() == 0


def test_torch_tensors_that_are_not_memory_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(kv.UnsupportedLayout, match="on 'meta'"):
        page_of(torch.zeros((4, 8), device="meta"))
    with pytest.raises(kv.UnsupportedLayout, match=r"layout torch\.sparse_coo"):
        page_of(torch.zeros((4, 8)).to_sparse())
    with pytest.raises(kv.UnsupportedLayout, match=r"shape \(4, 8\), strides \(0, 4\) bytes"):
        page_of(torch.zeros(8).expand(4, 8))
