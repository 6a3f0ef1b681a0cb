"""The handle of a submitted transfer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvoffload import _C
from kvoffload.layout import KVLayout
from kvoffload.streams import stream_handle

FOREVER_SECONDS = 1e9


@dataclass(frozen=True, slots=True)
class TransferResult:
    """How a transfer ended: `bytes` moved, `seconds` on the device, the `path` taken; `error`: why it is not `ok`.

    `reason`: why this path, such as what `auto` expected of each.

    >>> TransferResult(True, 33554432, 0.0006, "staged", reason="asked for").path
    'staged'
    """

    ok: bool
    bytes: int
    seconds: float
    path: str
    error: str = ""
    reason: str = ""


class Transfer:
    """A batch of copies that was submitted by `store` or `load`.

    Submitting gives no order to later work of the caller's stream; `before` does.
    """

    __slots__ = ("_handle", "_layout", "_result")

    def __init__(self, handle: _C.TransferHandle, layout: KVLayout) -> None:
        self._handle = handle
        self._layout = layout
        self._result: TransferResult | None = None

    def before(self, stream: Any = None, timeout_seconds: float = 5.0) -> None:
        """Make later work on `stream` run after these copies: a load's bytes are seen, a store's blocks may be reused.

        Waits on the host only until the copies are enqueued (of more than about 16,000 spans: until all but so many are
        done). On the host device with stream None the calling thread is the stream, so it waits for the copies. Raises
        `WaitTimeout` past the deadline, `DeviceError` or `Cancelled` when the transfer failed.
        """
        self._handle.check()
        self._handle.before(stream_handle(stream, self._layout), timeout_seconds)

    def done(self) -> bool:
        """Whether the transfer has ended, well or not."""
        return self._handle.done()

    def wait(self, timeout_seconds: float | None = None) -> TransferResult:
        """Wait on the host until the transfer has ended. A failure is in the result; `WaitTimeout` is raised."""
        self._handle.wait(FOREVER_SECONDS if timeout_seconds is None else timeout_seconds)
        result = self.result
        assert result is not None
        return result

    def cancel(self) -> bool:
        """True if the transfer had not started and now never will (its result is not ok)."""
        return self._handle.cancel()

    @property
    def result(self) -> TransferResult | None:
        """None while the transfer runs."""
        if self._result is None and (result := self._handle.result()) is not None:
            self._result = TransferResult(*result)
        return self._result
