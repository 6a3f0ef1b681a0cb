"""Callers' streams, from whatever framework they come."""

from __future__ import annotations

from typing import Any

from kvoffload._C import HostStream
from kvoffload.errors import InvalidInput
from kvoffload.layout import KVLayout


def stream_handle(stream: Any, layout: KVLayout) -> int:
    """The stream as an integer: a `cudaStream_t`, or on the host device a `HostStream`'s handle (0: this thread).

    `stream` is None (the current stream of the framework the tensors came from), an integer, a torch or cupy stream,
    an object with `__cuda_stream__`, or a `HostStream`. Raises `InvalidInput` for anything else.
    """
    if stream is None:
        return layout.current_stream()
    on_host = layout.device == "host"
    if isinstance(stream, HostStream) or on_host:
        return _host_handle(stream, on_host)
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    for attribute in ("cuda_stream", "ptr"):  # torch, cupy
        handle = getattr(stream, attribute, None)
        if isinstance(handle, int):
            return handle
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise InvalidInput(
        f"stream {stream!r}: give None, a cudaStream_t as an integer, a torch or cupy stream, or an object "
        "with __cuda_stream__"
    )


def _host_handle(stream: Any, on_host: bool) -> int:
    if not on_host:
        raise InvalidInput(
            "a HostStream orders work on the host device only; these tensors are on a GPU: give one of its streams"
        )
    if isinstance(stream, HostStream):
        return int(stream.handle)
    if stream == 0 and not isinstance(stream, bool):
        return 0
    raise InvalidInput(
        f"stream {stream!r}: on the host device give None (the calling thread) or a kvoffload.HostStream"
    )
