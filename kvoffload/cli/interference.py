"""How much transfers slow a neighbour on the GPU down, and how fast they are meanwhile. Needs no GPU and no torch.

neighbour = neighbours.large_product(0)          # or anything with a name and window(steps)
found = interfere(neighbour, lambda: rig.submit(row, False, "staged"))
found.slowdown_pct.median, found.gb_per_s.median
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kvoffload.cli.measure import Spread
from kvoffload.errors import KVOffloadError, WaitTimeout
from kvoffload.transfer import Transfer

PAIRS = 7
WINDOW_SECONDS = 0.25
WARMUPS = 3  # a GPU that was idle is cool and clocks higher: the first pair would show that
IN_FLIGHT = 2  # the next transfer is always queued, so that the link never waits for Python
WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Window:
    """One run of a neighbour: when it began and ended by time.perf_counter(), and `seconds` by the device's clock."""

    started: float
    ended: float
    seconds: float


class Neighbour(Protocol):
    """Work that shares the device. `window` runs `steps` of it and returns when they are done."""

    name: str

    def window(self, steps: int) -> Window: ...


@dataclass(frozen=True)
class Interference:
    """What on/off pairs gave.

    slowdown_pct: of the neighbour, per pair. gb_per_s: of the transfers that completed inside the neighbour's window.
    alone_gb_per_s: of the same transfers with no neighbour. steps: of the neighbour in a window.
    """

    neighbour: str
    slowdown_pct: Spread
    gb_per_s: Spread
    alone_gb_per_s: float
    steps: int


class Traffic:
    """Transfers one after another on a thread of their own, `IN_FLIGHT` at a time, while the `with` block runs.

    submit: submits one transfer and returns its handle. Leaving the block waits for the last ones and raises what
    failed.
    """

    def __init__(self, submit: Callable[[], Transfer]) -> None:
        self._submit = submit
        self._ended: list[tuple[float, int]] = []  # when by time.perf_counter(), bytes
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kvo-bench-traffic", daemon=True)

    def bytes_between(self, started: float, ended: float) -> int:
        """Bytes of the transfers that completed in this time."""
        return sum(count for when, count in list(self._ended) if started <= when <= ended)

    def wait_until_flowing(self, transfers: int = IN_FLIGHT) -> None:
        """Returns when so many transfers have ended. Raises WaitTimeout, or what stopped them."""
        deadline = time.monotonic() + WAIT_SECONDS
        while len(self._ended) < transfers and self._thread.is_alive():
            if time.monotonic() > deadline:
                raise WaitTimeout(f"no {transfers} transfers ended within {WAIT_SECONDS:g} s")
            time.sleep(0.0005)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join(WAIT_SECONDS)
        if self._failure is not None and exc_info[0] is None:
            raise self._failure

    def _run(self) -> None:
        try:
            pending: deque[Transfer] = deque()
            while pending or not self._stop.is_set():
                while len(pending) < IN_FLIGHT and not self._stop.is_set():
                    pending.append(self._submit())
                result = pending.popleft().wait(WAIT_SECONDS)
                if not result.ok:
                    raise KVOffloadError(f"a transfer beside the neighbour failed: {result.error}")
                self._ended.append((time.perf_counter(), result.bytes))
        except Exception as error:
            self._failure = error


def interfere(
    neighbour: Neighbour,
    submit: Callable[[], Transfer],
    *,
    pairs: int = PAIRS,
    window_seconds: float = WINDOW_SECONDS,
    tick: Callable[[], None] = lambda: None,
) -> Interference:
    """Runs the neighbour with and without transfers, `pairs` times in turn; who comes first changes from pair to pair.

    Make transfers small beside a window (`window_seconds` long): those that it cuts count whole at its start and not at
    its end. Raises what a transfer raised.
    """
    steps = steps_for(neighbour, window_seconds)
    alone = _alone(submit, window_seconds)
    for _ in range(WARMUPS):
        neighbour.window(steps)
    slowdowns, speeds = [], []
    for pair in range(pairs):
        quiet = neighbour.window(steps) if pair % 2 == 0 else None
        with Traffic(submit) as traffic:
            traffic.wait_until_flowing()
            busy = neighbour.window(steps)
            moved = traffic.bytes_between(busy.started, busy.ended)
        quiet = quiet or neighbour.window(steps)
        slowdowns.append(100 * (busy.seconds / quiet.seconds - 1))
        speeds.append(moved / 1e9 / (busy.ended - busy.started))
        tick()
    return Interference(neighbour.name, Spread(tuple(slowdowns)), Spread(tuple(speeds)), alone, steps)


def steps_for(neighbour: Neighbour, window_seconds: float) -> int:
    """Steps that make a window about `window_seconds` long; warms the neighbour up."""
    neighbour.window(1)  # libraries set themselves up
    steps = 1
    while (seconds := neighbour.window(steps).seconds) < window_seconds / 4:
        steps = max(2 * steps, int(steps * window_seconds / 2 / max(seconds, 1e-6))) if seconds else 2 * steps
    return max(1, round(steps * window_seconds / seconds))


def _alone(submit: Callable[[], Transfer], seconds: float) -> float:
    with Traffic(submit) as traffic:
        traffic.wait_until_flowing()
        started = time.perf_counter()
        time.sleep(seconds)
        ended = time.perf_counter()
        moved = traffic.bytes_between(started, ended)
    return moved / 1e9 / (ended - started)
