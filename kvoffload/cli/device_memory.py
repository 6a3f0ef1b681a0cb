"""A device and a buffer on it as benchmarks need them, with no framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvoffload import _C
from kvoffload.errors import InvalidInput, KVOffloadError, MemoryLimit

PER_THREAD_STREAM = 2  # cudaStreamPerThread: a stream of the caller's that is not the legacy one


class Target:
    """A device that can be measured: "host" (plain memory stands in for a GPU) or "cuda:N".

    Raises InvalidInput for other names, Unsupported or DeviceError where it is not there.
    """

    def __init__(self, name: str) -> None:
        ordinal = name.removeprefix("cuda:")
        if name != "host" and not (name.startswith("cuda:") and ordinal.isdigit()):
            raise InvalidInput(f"device is {name!r}; it must be 'host' or 'cuda:N', N the number of a GPU")
        self.name = name
        self.is_host = name == "host"
        self.ordinal = 0 if self.is_host else int(ordinal)
        self.device = _C.host_device() if self.is_host else _C.cuda_device(self.ordinal)
        # On the host the calling thread is the stream, until a gate is needed.
        self._gate = _C.HostStream() if self.is_host else PER_THREAD_STREAM
        self.stream: Any = None if self.is_host else PER_THREAD_STREAM

    def hold(self, seconds: float) -> Any:
        """Keeps a stream busy; transfers submitted to it start when that is over."""
        if isinstance(self._gate, _C.HostStream):
            self._gate.delay(seconds)
        else:
            _C.cuda_spin(self.ordinal, self._gate, seconds)
        return self._gate

    def allocate(self, wanted: int, least: int) -> tuple[_C.DeviceMemory, int]:
        """Memory of `wanted` bytes, or of the first half, quarter, ... of that, down to `least`, which can be had."""
        size = wanted
        while True:
            try:
                return _C.device_alloc(self.device, size), size
            except KVOffloadError as error:
                if size // 2 < least:
                    raise MemoryLimit(
                        f"{self.name} has no {size} bytes of device memory left: {error}; lower --count, or leave out "
                        "large sizes"
                    ) from error
                size //= 2

    def read(self, addresses: npt.NDArray[np.int64], page_bytes: int) -> npt.NDArray[np.uint8]:
        """The bytes of device pages, as (pages, page_bytes), by plain copies."""
        pages = np.empty((len(addresses), page_bytes), np.uint8)
        first = pages.ctypes.data
        copies = [(first + i * page_bytes, int(at), page_bytes) for i, at in enumerate(addresses)]
        _C.raw_copies(self.device, True, copies, "loop", 1)
        return pages
