"""What `bench transfer` measures: ceilings of the machine, and each path at each size and direction. Prints nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvoffload import _C
from kvoffload.cli.device_memory import Target
from kvoffload.cli.rig import DIRECTIONS, RAW_PATHS, Rig, Sample
from kvoffload.cli.sizing import Row

CEILING_BYTES, HOST_CEILING_BYTES = 1 << 30, 256 << 20
MOST_HOLD_SECONDS = 0.05  # longer than any path takes to enqueue what fits on a stream
LEAST_HOLD_SECONDS = 0.001


@dataclass(frozen=True)
class Spread:
    """Samples of one figure, in its unit."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def least(self) -> float:
        return min(self.samples)

    @property
    def most(self) -> float:
        return max(self.samples)


@dataclass(frozen=True)
class Ceilings:
    """Contiguous copies of `bytes`, GB/s: each way alone, and each way's own rate while both run at once."""

    h2d: float
    d2h: float
    both_h2d: float
    both_d2h: float
    bytes: int

    def gb_per_s(self, load_bytes: int, store_bytes: int) -> float:
        """The most for a transfer of these bytes. Of unequal directions the longer has the link to itself at the end.

        >>> machine = Ceilings(h2d=50, d2h=50, both_h2d=45, both_d2h=45, bytes=1)
        >>> machine.gb_per_s(8, 0), machine.gb_per_s(8, 8)
        (50, 90)
        >>> 50 < machine.gb_per_s(24, 8) < 90
        True
        """
        if not load_bytes or not store_bytes:
            return self.h2d if load_bytes else self.d2h
        if load_bytes == store_bytes:
            return self.both_h2d + self.both_d2h
        load_seconds, store_seconds = load_bytes / self.both_h2d, store_bytes / self.both_d2h
        together = min(load_seconds, store_seconds)
        left_h2d, left_d2h = load_bytes - together * self.both_h2d, store_bytes - together * self.both_d2h
        return (load_bytes + store_bytes) / (together + left_h2d / self.h2d + left_d2h / self.d2h)


@dataclass(frozen=True)
class Cell:
    """One path at one size and direction.

    seconds: from the call until the last byte was seen. device_seconds: on the device, held back until everything was
    enqueued (None: not measured). taken, reason: what `auto` or the engine chose, and why. ceiling_gb_per_s: of the
    machine, for the same bytes. verified_bytes: compared on both sides.
    """

    row: Row
    direction: str
    path: str
    load_bytes: int
    store_bytes: int
    seconds: Spread
    device_seconds: Spread | None
    taken: str
    reason: str
    verified_bytes: int
    ceiling_gb_per_s: float

    @property
    def bytes(self) -> int:
        return self.load_bytes + self.store_bytes

    @property
    def gb_per_s(self) -> float:
        return self.bytes / 1e9 / self.seconds.median

    @property
    def device_gb_per_s(self) -> float | None:
        """None where it was not measured, or where the copies took no time that a clock could see."""
        if self.device_seconds is None or not self.device_seconds.median:
            return None
        return self.bytes / 1e9 / self.device_seconds.median

    @property
    def ceiling_ratio(self) -> float:
        return self.gb_per_s / self.ceiling_gb_per_s


def measure_ceilings(target: Target, most_bytes: int) -> Ceilings:
    """Copies of 1 GiB; on the host device of 256 MiB, all of them in at most `most_bytes`."""
    size = max(1 << 20, min(HOST_CEILING_BYTES, most_bytes // 4)) if target.is_host else CEILING_BYTES
    d2h, h2d = _C.ceiling_gb_per_s(target.device, size, False)
    both_d2h, both_h2d = _C.ceiling_gb_per_s(target.device, size, True)
    return Ceilings(h2d, d2h, both_h2d, both_d2h, size)


def steps_of(directions: Sequence[str], paths: Sequence[str], repeats: int) -> int:
    """How often `measure_row` calls its `tick`."""
    ways = {store for direction in directions for store in DIRECTIONS[direction]}
    return len(paths) * len(ways) + len(directions) * len(paths) * 2 * repeats


def measure_row(
    rig: Rig, index: int, directions: Sequence[str], paths: Sequence[str], repeats: int, ceilings: Ceilings,
    tick: Callable[[], None] = lambda: None,
) -> list[Cell]:  # fmt: skip
    """All paths at one size, `repeats` times in turn, so that what the machine does meanwhile meets them alike.

    directions: out of h2d, d2h, both. paths: out of `rig.paths`. tick: called after every run, for a progress bar.
    Raises KVOffloadError where a transfer fails or bytes are wrong.
    """
    rig.prepare(index)
    verified: dict[tuple[str, bool], int] = {}
    for store in sorted({store for direction in directions for store in DIRECTIONS[direction]}):
        for path in paths:
            verified[path, store] = rig.verify(index, store, path)
            tick()
    cells = []
    for direction in directions:
        runs: dict[str, list[Sample]] = {path: [] for path in paths}
        gated: dict[str, list[Sample]] = {path: [] for path in paths}
        for turn in range(repeats):
            for path in _from(paths, turn):
                runs[path].append(rig.run(index, direction, path))
                tick()
        for turn in range(repeats):
            for path in _from(paths, turn):
                if path not in RAW_PATHS:
                    hold = min(MOST_HOLD_SECONDS, statistics.median(s.seconds for s in runs[path]))
                    gated[path].append(rig.run_gated(index, direction, path, hold + LEAST_HOLD_SECONDS))
                tick()
        for path in paths:
            seen = sum(verified[path, store] for store in DIRECTIONS[direction])
            cells.append(_cell(rig, index, direction, path, runs[path], gated[path], seen, ceilings))
    return cells


def _from(paths: Sequence[str], turn: int) -> list[str]:
    """All paths, another one first at each turn: none always follows the same one."""
    start = turn % len(paths)
    return [*paths[start:], *paths[:start]]


def _cell(
    rig: Rig, index: int, direction: str, path: str, runs: list[Sample], gated: list[Sample], verified_bytes: int,
    ceilings: Ceilings,
) -> Cell:  # fmt: skip
    moved = rig.moved_bytes(index, direction)
    load_bytes, store_bytes = moved.get(False, 0), moved.get(True, 0)
    results = runs[-1].results
    return Cell(
        row=rig.rows[index],
        direction=direction,
        path=path,
        load_bytes=load_bytes,
        store_bytes=store_bytes,
        seconds=Spread(tuple(sample.seconds for sample in runs)),
        device_seconds=Spread(tuple(sample.seconds for sample in gated)) if gated else None,
        taken=" + ".join(dict.fromkeys(result.path for result in results)) or path,
        reason="; ".join(dict.fromkeys(result.reason for result in results if result.reason)),
        verified_bytes=verified_bytes,
        ceiling_gb_per_s=ceilings.gb_per_s(load_bytes, store_bytes),
    )


@dataclass(frozen=True)
class Pool:
    """How fast host memory became usable: seconds until the first part and until all `bytes` of it were."""

    bytes: int
    first_ready_seconds: float
    seconds: float
    pinned: bool
    huge_pages: str

    @property
    def gib_per_s(self) -> float:
        return self.bytes / 2**30 / self.seconds


def measure_pool(device: _C.Device, size: int) -> Pool:
    """Takes, fills and beside a GPU pins an arena of `size` bytes, once, and gives it back."""
    started = time.perf_counter()
    arena = _C.Arena(device, size)
    first = time.perf_counter() - started
    arena.wait_ready(size, 600.0)
    seconds = time.perf_counter() - started
    report = arena.report()
    return Pool(size, first, seconds, report["pinned"], report["huge_pages"])
