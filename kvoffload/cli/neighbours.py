"""Work of a model that transfers may disturb, made with torch: the one module of the command line that loads it."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from kvoffload.cli.interference import Window
from kvoffload.errors import Unsupported

# Far below the about 1,000 operations that fill a stream: there the launching thread would block, and the neighbour's
# window would measure that.
MOST_QUEUED = 400


def load_torch() -> Any:
    """torch, with a GPU. Raises Unsupported that says what is missing."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise Unsupported("the neighbours' matrix products come from torch, which is not installed here") from None
    if not torch.cuda.is_available():
        raise Unsupported(f"torch {torch.__version__} sees no GPU here")
    return torch


class TorchNeighbour:
    """Kernels on a stream of their own. `step` launches one step, `launches` kernels."""

    def __init__(self, name: str, torch: Any, ordinal: int, step: Callable[[], object], launches: int) -> None:
        self.name = name
        self._torch, self._step = torch, step
        self._stream = torch.cuda.Stream(ordinal)
        self._steps_ahead = max(1, MOST_QUEUED // 2 // launches)
        torch.cuda.synchronize(ordinal)  # what the steps read was made on another stream

    def window(self, steps: int) -> Window:
        """Runs `steps`; at most two times `_steps_ahead` of them are queued."""
        event = self._torch.cuda.Event
        begin, end = event(enable_timing=True), event(enable_timing=True)
        queued = []
        with self._torch.cuda.stream(self._stream):
            self._stream.synchronize()
            started = time.perf_counter()
            begin.record()
            for done in range(1, steps + 1):
                self._step()
                if done % self._steps_ahead == 0:
                    queued.append(event())
                    queued[-1].record()
                    if len(queued) > 1:
                        queued.pop(0).synchronize()
            end.record()
            end.synchronize()
            ended = time.perf_counter()
        return Window(started, ended, begin.elapsed_time(end) / 1e3)


def large_product(ordinal: int) -> TorchNeighbour:
    """bf16, 8192 x 8192 x 8192: kernels that fill the GPU for more than a millisecond."""
    return _product("gemm8192", ordinal, 8192)


def small_product(ordinal: int) -> TorchNeighbour:
    """bf16, 2048 x 2048 x 2048: tens of microseconds each."""
    return _product("gemm2048", ordinal, 2048)


def memory_bound(ordinal: int) -> TorchNeighbour:
    """Reads 1 GiB and writes 1 GiB of the GPU's memory, by a kernel."""
    torch = load_torch()
    source = torch.rand(1 << 28, device=f"cuda:{ordinal}")
    target = torch.empty_like(source)
    return TorchNeighbour("membound", torch, ordinal, lambda: torch.mul(source, 1.0001, out=target), 1)


def decode(ordinal: int, layers: int = 32, batch: int = 16, width: int = 4096) -> TorchNeighbour:
    """One decode step as engines run it: a CUDA graph of many small kernels, bound by reading weights."""
    torch = load_torch()
    with torch.cuda.device(ordinal):
        made = {"dtype": torch.bfloat16, "device": f"cuda:{ordinal}"}
        # 256 MiB of weights in turn: more than a GPU's cache, so that each product reads from memory.
        weights = [torch.randn(width, width, **made) / width**0.5 for _ in range(8)]
        x, y = torch.randn(batch, width, **made), torch.empty(batch, width, **made)

        def layer(index: int) -> None:
            for part in range(4):
                torch.matmul(x, weights[(4 * index + part) % len(weights)], out=y)
                torch.tanh(y, out=x)

        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            layer(0)  # libraries set themselves up outside the graph
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for index in range(layers):
                layer(index)
    return TorchNeighbour("decode", torch, ordinal, graph.replay, 8 * layers)


def _product(name: str, ordinal: int, n: int) -> TorchNeighbour:
    torch = load_torch()
    a, b, c = (torch.randn(n, n, dtype=torch.bfloat16, device=f"cuda:{ordinal}") for _ in range(3))
    return TorchNeighbour(name, torch, ordinal, lambda: torch.matmul(a, b, out=c), 1)


NEIGHBOURS = (large_product, small_product, memory_bound, decode)  # each makes one on GPU `ordinal`
