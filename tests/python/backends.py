"""The devices and frameworks on which every test of moving bytes runs alike: plain memory and CUDA, numpy, torch, cupy.

A backend gives memory (a flat uint8 array of its framework), strided views of it, and streams that can be held back.
Handles are what a user would pass to kvoffload: a kv.HostStream, a torch.cuda.Stream, a cupy.cuda.Stream.
"""

import importlib.util
import threading
import time

import numpy as np
import pytest

import kvoffload as kv
from kvoffload import _C


def address_of(array) -> int:
    return array.data_ptr() if hasattr(array, "data_ptr") else array.__array_interface__["data"][0]


class HostNumpy:
    name, device = "host-numpy", "host"

    def memory(self, data: np.ndarray):
        return np.array(data, np.uint8)

    def view(self, memory, offset, shape, strides_bytes, item_bytes):
        dtype = {1: np.uint8, 2: np.int16, 4: np.float32, 8: np.int64}[item_bytes]
        return np.ndarray(shape, dtype, buffer=memory.data, offset=offset, strides=strides_bytes)

    def read(self, memory) -> np.ndarray:
        return np.array(memory)

    def write(self, memory, data: np.ndarray) -> None:
        memory[:] = data

    def stream(self):
        return NumpyStream()

    def synchronize(self) -> None:
        pass


class NumpyStream:
    def __init__(self):
        self.handle = kv.HostStream()

    def delay(self, seconds):
        self.handle.delay(seconds)

    def fill(self, memory, start, stop, value):
        self.handle.fill(address_of(memory) + start, stop - start, value)

    def copy(self, target, source):
        self.handle.copy(address_of(target), address_of(source), len(source))

    def synchronize(self):
        self.handle.synchronize()


def torch_view(torch, memory, offset, shape, strides_bytes, item_bytes):
    dtype = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32, 8: torch.int64}[item_bytes]
    items = torch.empty(0, dtype=dtype, device=memory.device)
    steps = [s // item_bytes for s in strides_bytes]
    return items.set_(memory.untyped_storage(), offset // item_bytes, tuple(shape), steps)


class HostTorch(HostNumpy):
    name = "host-torch"

    def __init__(self):
        self.torch = pytest.importorskip("torch")

    def memory(self, data):
        return self.torch.from_numpy(np.array(data, np.uint8))

    def view(self, memory, *where):
        return torch_view(self.torch, memory, *where)

    def read(self, memory):
        return memory.numpy().copy()

    def write(self, memory, data):
        memory.numpy()[:] = data


class CudaTorch:
    name, device = "cuda-torch", "cuda:0"

    def __init__(self):
        self.torch = pytest.importorskip("torch")

    def memory(self, data):
        return self.torch.from_numpy(np.array(data, np.uint8)).cuda()

    def view(self, memory, *where):
        return torch_view(self.torch, memory, *where)

    def read(self, memory):
        self.synchronize()
        return memory.cpu().numpy()

    def write(self, memory, data):
        self.synchronize()
        memory.copy_(self.torch.from_numpy(np.ascontiguousarray(data)))
        self.synchronize()

    def pinned_memory(self, size):
        return self.torch.zeros(size, dtype=self.torch.uint8).pin_memory()

    def stream(self):
        return TorchStream(self.torch)

    def synchronize(self):
        self.torch.cuda.synchronize()


class TorchStream:
    def __init__(self, torch):
        self.torch, self.handle = torch, torch.cuda.Stream()

    def delay(self, seconds):
        _C.cuda_spin(0, self.handle.cuda_stream, seconds)

    def fill(self, memory, start, stop, value):
        with self.torch.cuda.stream(self.handle):
            memory[start:stop].fill_(value)

    def copy(self, target, source):
        with self.torch.cuda.stream(self.handle):
            target.copy_(source, non_blocking=True)

    bring = copy  # to pinned memory

    def synchronize(self):
        self.handle.synchronize()


class CudaCupy:
    name, device = "cuda-cupy", "cuda:0"

    def __init__(self):
        self.cupy = pytest.importorskip("cupy")

    def memory(self, data):
        return self.cupy.asarray(np.array(data, np.uint8))

    def view(self, memory, offset, shape, strides_bytes, item_bytes):
        dtype = {1: "uint8", 2: "float16", 4: "float32", 8: "int64"}[item_bytes]
        return self.cupy.ndarray(tuple(shape), dtype, memory.data + offset, tuple(strides_bytes))

    def read(self, memory):
        self.synchronize()
        return self.cupy.asnumpy(memory)

    def write(self, memory, data):
        self.synchronize()
        memory.set(np.ascontiguousarray(data))
        self.synchronize()

    def pinned_memory(self, size):
        return importlib.import_module("cupyx").zeros_pinned(size, np.uint8)

    def stream(self):
        return CupyStream(self.cupy)

    def synchronize(self):
        self.cupy.cuda.Device().synchronize()


class CupyStream:
    def __init__(self, cupy):
        self.cupy, self.handle = cupy, cupy.cuda.Stream(non_blocking=True)

    def delay(self, seconds):
        _C.cuda_spin(0, self.handle.ptr, seconds)

    def fill(self, memory, start, stop, value):
        with self.handle:
            memory[start:stop].fill(value)

    def copy(self, target, source):
        with self.handle:
            self.cupy.copyto(target, source)

    def bring(self, pinned, source):
        source.get(stream=self.handle, out=pinned, blocking=False)

    def synchronize(self):
        self.handle.synchronize()


class BusyStreams:
    """Keeps foreign streams of a GPU filled with small kernels while it is entered. Never synchronises, so that it may
    run beside a graph capture.

    At most AHEAD kernels of a stream wait: streams share hardware queues, what holds one up holds up others, and all
    that has piled up meanwhile would come before the next step of a test. How far a stream is, a copy to pinned memory
    tells.
    """

    SPIN_SECONDS, AHEAD = 200e-6, 3

    def __init__(self, backend, count):
        self.streams = [backend.stream() for _ in range(count)]
        self.numbers = backend.memory(np.arange(256))
        self.reached = backend.pinned_memory(count)
        self.launched = [0] * count
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stop.is_set():
            for i, stream in enumerate(self.streams):
                if (self.launched[i] - int(self.reached[i])) % 256 < self.AHEAD:
                    self.launched[i] = (self.launched[i] + 1) % 256
                    stream.delay(self.SPIN_SECONDS)
                    stream.bring(self.reached[i : i + 1], self.numbers[self.launched[i] : self.launched[i] + 1])
            time.sleep(self.SPIN_SECONDS / 2)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def no_gpu() -> str:
    """Why tests on a GPU cannot run here; empty where they can."""
    if importlib.util.find_spec("torch") is not None:
        import torch

        return "" if torch.cuda.is_available() else "torch sees no CUDA device"
    if importlib.util.find_spec("cupy") is not None:
        import cupy

        return "" if cupy.cuda.is_available() else "cupy sees no CUDA device"
    return "no framework with CUDA (torch or cupy) is installed"


HOST = [pytest.param(HostNumpy, id="host-numpy"), pytest.param(HostTorch, id="host-torch")]
CUDA = [
    pytest.param(b, id=b.name, marks=[pytest.mark.gpu, pytest.mark.skipif(bool(no_gpu()), reason=no_gpu())])
    for b in (CudaTorch, CudaCupy)
]
EVERYWHERE = HOST + CUDA
