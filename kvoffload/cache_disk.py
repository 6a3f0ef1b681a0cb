"""What a cache with a disk does besides: demoting ahead of need, and bringing keys back on request."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvoffload.errors import KVOffloadError, WaitTimeout
from kvoffload.ledger import Hold, Ledger
from kvoffload.messages import FinishedJob, Hello, Job

# Demotions in flight keep their slots from being evicted: at most this share of host memory, and so many keys a job.
IN_FLIGHT_SHARE, MOST_JOB_KEYS = 8, 32
# Half of what a mover's disk takes into its queue.
MOST_IN_FLIGHT_KEYS = 2048
# With write-back, what is not on disk yet may fill this share of host memory before anything is written.
UNWRITTEN_SHARE = 16
# What is on its way from disk, and what a disk that hung still holds of it, leaves this share of host memory alone.
KEPT_SHARE = 4
PUMP_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class PrefetchResult:
    """What a prefetch came to: of the keys asked for the first `host` are in host memory, and are kept there.

    >>> PrefetchResult(host=3, seconds=0.02).host
    3
    """

    host: int
    seconds: float


class Prefetch:
    """Keys on their way from disk to host memory. What is there stays until `release`, or its `with` ends."""

    __slots__ = ("__weakref__", "_begun", "_group", "_hold", "_keys", "_ledger", "_lock", "_process", "_released",
                 "_result", "_settle", "_wait")  # fmt: skip

    def __init__(
        self,
        ledger: Ledger,
        keys: Sequence[bytes],
        group: int,
        settle: Callable[[], None],
        wait: Callable[[float], None],
    ) -> None:
        self._ledger, self._keys, self._group, self._settle, self._wait = ledger, keys, group, settle, wait
        self._begun, self._process = time.monotonic(), os.getpid()
        self._lock = threading.RLock()  # a signal handler may call in
        self._released = False
        self._result: PrefetchResult | None = None
        self._hold: Hold = ledger.hold(keys, group)  # what has no way to go must not be gone when the rest is there

    @property
    def result(self) -> PrefetchResult | None:
        """None while keys are on their way."""
        if self._result is None:
            self._settle()
            self.look()
        return self._result

    def look(self) -> None:
        """Whether all is there that will come: then it is held. Called when its job has ended, whoever may ask later,
        or other prefetches would push it out meanwhile.
        """
        with self._lock:
            if self._result is not None or "filling" in self._ledger.states(self._keys, self._group):
                return
            hold = self._ledger.hold(self._keys, self._group)
            self._result = PrefetchResult(hold.keys_held, time.monotonic() - self._begun)
            self._hold.release()
            self._hold = hold
            if self._released:
                hold.release()

    def done(self) -> bool:
        """Whether nothing more will come."""
        return self.result is not None

    def wait(self, timeout_seconds: float = 5.0) -> PrefetchResult:
        """Wait until all is there that will come. A record that does not verify is a miss. Raises `WaitTimeout`."""
        deadline = time.monotonic() + timeout_seconds
        while (result := self.result) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise WaitTimeout(f"the prefetch of {len(self._keys)} keys still runs after {timeout_seconds} s")
            self._wait(min(left, 0.05))
        return result

    def release(self) -> None:
        """Keys may be evicted again; a second time it does nothing."""
        with self._lock:
            self._released = True
            self._hold.release()

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if hasattr(self, "_hold") and self._process == os.getpid():  # a fork's copy may find locks taken for ever
            self.release()


class WriteBack:
    """Plans demotions ahead of need, and sends them.

    hello: of a mover, for its sizes. write_through: at once. Else what waits may fill a sixteenth of host memory, so
    that what lives shortly is never written; then the oldest goes. send: gives a job to the movers; what it raises
    drops the job.
    """

    def __init__(self, ledger: Ledger, hello: Hello, write_through: bool, send: Callable[[Job], None]) -> None:
        self._ledger, self._send, self._groups = ledger, send, len(hello.slot_bytes)
        host_keys = hello.host_bytes // max(hello.slot_bytes)
        self._most_waiting = 0 if write_through else host_keys // UNWRITTEN_SHARE
        self._most_in_flight = min(max(host_keys // IN_FLIGHT_SHARE, 1), MOST_IN_FLIGHT_KEYS)
        self._jobs: dict[int, int] = {}  # demotions in flight: job -> keys

    def ended(self, jobs: Iterable[FinishedJob]) -> None:
        for job in jobs:
            self._jobs.pop(job.id, None)

    def pump(self, *, everything: bool = False) -> None:
        """Send what is due; with `everything`, all that fits into the queue."""
        over = self._ledger.stats()["waiting_for_disk_keys"] - (0 if everything else self._most_waiting)
        for group in range(self._groups):
            while over > 0 and (room := self._most_in_flight - sum(self._jobs.values())) > 0:
                job = self._ledger.plan_demote(min(over, room, MOST_JOB_KEYS), group)
                if job is None:
                    break
                over -= len(job.keys)
                if not self._sent(job):
                    return

    @property
    def idle(self) -> bool:
        return not self._jobs

    def _sent(self, job: Job) -> bool:
        try:
            self._send(job)
        except KVOffloadError:  # full or off: counted there, and dropped
            self._ledger.abandon(job.id)
            return False
        self._jobs[job.id] = len(job.keys)
        return True


def pump_in_background(cache: object, step: Callable[[Any], bool], wait: Callable[[float], object]) -> threading.Event:
    """A thread that calls `step(cache)` until the event is set or `cache` is gone, and whenever the disk has something
    to tell. `step`: whether something is under way there, which `wait` waits for.
    """
    stop, alive = threading.Event(), weakref.ref(cache)

    def run() -> None:
        while not stop.is_set() and (owner := alive()) is not None:
            try:
                busy = step(owner)
            except KVOffloadError:  # closed meanwhile
                return
            del owner
            (wait if busy else stop.wait)(PUMP_SECONDS)

    threading.Thread(target=run, name="kvoffload-disk", daemon=True).start()
    return stop
