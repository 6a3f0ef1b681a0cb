"""A disk tier over a slab of its own, to be measured: records written and read one after another, so many at once."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from kvoffload import _C
from kvoffload.errors import KVOffloadError

TRAILER_BYTES = 512
WAIT_SECONDS = 60.0
EPOCH = 1


@dataclass(frozen=True)
class DiskRun:
    """Every record of the slab once. seconds: of all of it; latencies: of each record, from its submission on."""

    bytes: int
    seconds: float
    cpu_seconds: float
    latencies: tuple[float, ...]

    @property
    def gb_per_s(self) -> float:
        return self.bytes / self.seconds / 1e9

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu_seconds / (self.bytes / 1e9)

    def percentile(self, percent: float) -> float:
        """Seconds within which so many of the records were done.

        >>> DiskRun(1, 1.0, 0.1, (0.3, 0.1, 0.2)).percentile(50)
        0.2
        """
        return float(np.percentile(self.latencies, percent))


class DiskRig:
    """Memory for `most_at_once` records, and a slab for `records` of them in a new directory below `directory`.

    record_bytes: of a slot, trailer included. io: "auto", "io_uring" or "threads". Use it as a context manager: the
    directory goes with it. Raises Unsupported where `io` cannot be used, InvalidInput where there is no room.
    """

    def __init__(
        self, directory: Path, record_bytes: int, records: int, most_at_once: int, io: str, *, network: bool = False
    ) -> None:
        self.record_bytes, self.records, self.most_at_once = record_bytes, records, min(most_at_once, records)
        self._arena = _C.Arena(_C.host_device(), self.most_at_once * record_bytes)
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * self._arena.bytes).from_address(self._arena.address))
        memory[:] = np.frombuffer(np.random.default_rng(1).bytes(len(memory)), np.uint8)  # nothing to compress
        self._folder = tempfile.mkdtemp(prefix="kvoffload-bench-", dir=directory)
        try:
            self._tier = _C.DiskTier(
                self._arena, [self._folder], "kvoffload bench disk", 0, [record_bytes], [record_bytes - TRAILER_BYTES],
                _cap_bytes(records * record_bytes), io=io, network=network, most_waiting=max(most_at_once, 1),
            )  # fmt: skip
        except BaseException:
            shutil.rmtree(self._folder)
            raise

    def __enter__(self) -> DiskRig:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._tier.close(WAIT_SECONDS)
        finally:
            shutil.rmtree(self._folder)

    @property
    def path(self) -> Path:
        return Path(self._tier.paths[0])

    @property
    def total_bytes(self) -> int:
        return self.records * self.record_bytes

    @property
    def report(self) -> dict[str, object]:
        """How the tier uses the disk."""
        return self._tier.report()

    def run(self, write: bool, at_once: int) -> DiskRun:
        """Writes or reads all records, `at_once` of them in flight. Raises KVOffloadError when one fails."""
        at_once = min(at_once, self.most_at_once)
        unused, following = list(range(at_once)), 0
        latencies: list[float] = []
        slot_of: dict[int, int] = {}
        cpu, began = _cpu_seconds(), time.perf_counter()
        while len(latencies) < self.records:
            while unused and following < self.records:
                slot_of[following] = slot = unused.pop()
                self._submit(write, following, slot)
                following += 1
            self._tier.wait(WAIT_SECONDS)
            for job, _, seconds, error, failed, _ in self._tier.poll():
                if failed:
                    raise KVOffloadError(f"record {job} failed: {error}")
                latencies.append(seconds)
                unused.append(slot_of.pop(job))
        if write and not self.report["direct"]:
            self._tier.sync()
        seconds = time.perf_counter() - began
        return DiskRun(self.total_bytes, seconds, _cpu_seconds() - cpu, tuple(latencies))

    def _submit(self, write: bool, record: int, slot: int) -> None:
        keys = [b"record %09d" % record]
        if write:
            self._tier.demote(record, 0, [slot], [record], keys, record + 1, EPOCH, WAIT_SECONDS)
        else:
            self._tier.promote(record, 0, [slot], [record], keys, EPOCH, WAIT_SECONDS)


def _cap_bytes(slab_bytes: int) -> int:
    """What a slab of so many bytes is counted with, file system's maps included."""
    return slab_bytes + slab_bytes // 8000 + (256 << 10)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def free_bytes(directory: Path) -> int:
    """What a file there may still take."""
    space = os.statvfs(directory)
    return space.f_bavail * space.f_frsize
