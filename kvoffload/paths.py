"""Which path is best for which transfer: measured once per GPU, driver and link, and kept in a file.

The table rests in `$XDG_CACHE_HOME/kvoffload` (default `~/.cache/kvoffload`), one JSON file for each GPU, driver, link
and ring. Whatever is wrong with it costs another measurement and never a start: a file is believed only when every
value in it is what we would have written, and where none can be kept the table lives as long as the process.
"""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from kvoffload.config import format_size, parse_size
from kvoffload.errors import InvalidInput, KVOffloadError
from kvoffload.path_file import Folder, Kept

logger = logging.getLogger("kvoffload")

PATHS = ("auto", "dma", "kernel", "staged")
RING_LEAST_BYTES, RING_MOST_BYTES = 32 << 20, 256 << 20
# Contiguous copies under this share of what the link can do were slowed by something that will pass.
BELIEVABLE_SHARE = 0.5
MOST_SECONDS = 3600.0

Row = tuple[bool, int, int, str, float]  # store, bytes of a span, spans, path, seconds
Direction = Literal["store", "load"]


class PathEngine(Protocol):
    """What is needed of `_C.Engine`. It is idle: nothing was submitted yet."""

    @property
    def paths(self) -> list[str]: ...
    @property
    def ring_bytes(self) -> int: ...
    def ceiling(self) -> tuple[float, float]: ...
    def calibrate(self) -> list[Row]: ...
    def set_path_table(self, rows: Sequence[Row], /) -> None: ...


@dataclass(frozen=True, slots=True)
class PathCell:
    """What `spans` copies of `span_bytes` each took on one path, in `seconds`.

    >>> PathCell(True, 16384, 1000, "staged", 0.000327).gb_per_s
    50.1
    """

    store: bool
    span_bytes: int
    spans: int
    path: str
    seconds: float

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes a second, to one decimal."""
        return round(self.span_bytes * self.spans / self.seconds / 1e9, 1)

    @property
    def row(self) -> Row:
        return self.store, self.span_bytes, self.spans, self.path, self.seconds


@dataclass(frozen=True, slots=True)
class PathTable:
    """What `auto` chooses by. `source` says where the rows come from.

    `ceilings`: 10^9 bytes a second of contiguous copies, store and load; 0 where not measured. No rows: there is
    nothing to choose from, as on the host device.

    >>> table = built_in("an example", ["dma", "kernel", "staged"])
    >>> table.source
    'built in: an example'
    >>> [(cell.span_bytes, cell.path, cell.gb_per_s) for cell in table.best("store")][:2]
    [(4096, 'kernel', 44.0), (16384, 'kernel', 50.0)]
    >>> table.summary()
    'store kernel to 64 KiB, staged above; load kernel to 16 KiB, staged above'
    """

    rows: tuple[PathCell, ...]
    source: str
    ceilings: tuple[float, float] = (0.0, 0.0)

    def best(self, direction: Direction) -> list[PathCell]:
        """For each span size, rising, the fastest path when there are many spans of it."""
        fullest: dict[tuple[int, str], PathCell] = {}  # of each span size and path, the cell with the most spans
        for cell in sorted(self.rows, key=lambda cell: cell.spans):
            if cell.store == (direction == "store"):
                fullest[cell.span_bytes, cell.path] = cell
        by_size: dict[int, list[PathCell]] = {}
        for cell in fullest.values():
            by_size.setdefault(cell.span_bytes, []).append(cell)
        return [max(cells, key=lambda cell: cell.gb_per_s) for _, cells in sorted(by_size.items())]

    def summary(self) -> str:
        """The best paths in a few words, for a log line; empty when there are no rows."""
        directions: tuple[Direction, ...] = ("store", "load")
        return "; ".join(f"{direction} {_in_words(self.best(direction))}" for direction in directions if self.rows)

    def text(self) -> str:
        """The whole table, GB/s by path, a line for each direction, span size and number of spans."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"paths {self.source}"
        if any(self.ceilings):
            yield "contiguous copies: store {:.1f} GB/s, load {:.1f} GB/s".format(*self.ceilings)
        paths = list(dict.fromkeys(cell.path for cell in self.rows))
        if paths:
            yield f"{'GB/s':5} {'page':>9} {'pages':>6}" + "".join(f"{path:>8}" for path in paths) + "  best"
        lines: dict[tuple[bool, int, int], dict[str, PathCell]] = {}
        for cell in self.rows:
            lines.setdefault((not cell.store, cell.span_bytes, cell.spans), {})[cell.path] = cell
        for (load, span_bytes, spans), cells in sorted(lines.items()):
            figures = "".join(f"{cells[path].gb_per_s:8.1f}" if path in cells else f"{'-':>8}" for path in paths)
            best = min(cells.values(), key=lambda cell: cell.seconds)
            yield f"{'load' if load else 'store':5} {format_size(span_bytes):>9} {spans:6}{figures}  {best.path}"


def load_or_calibrate(
    engine: PathEngine, identity: str, link_gb_per_s: float = 0.0, *, calibrate: bool = True
) -> PathTable:
    """Give `engine` the table it chooses paths by, and return it: the kept one, else one measured now, else built in.

    identity: GPU, driver and link, as text. link_gb_per_s: what the link can do, 0 when unknown. calibrate: whether to
    measure when no table is kept. One process of a host measures at a time; the others wait up to 10 s and then use
    what it kept. Neither a file nor a failed measurement makes it raise.
    """
    if "host" in engine.paths:
        return PathTable((), "built in: the device is host memory, there is one path")
    table = _find(engine, f"{identity}, ring of {engine.ring_bytes} bytes", link_gb_per_s, calibrate)
    engine.set_path_table([cell.row for cell in table.rows])
    logger.info("kvoffload: paths %s: %s", table.source, table.summary())
    return table


def check_path(value: Any) -> str:
    """`value` if it names a path or is "auto". Raises InvalidInput that names the nearest one.

    >>> check_path("kernel")
    'kernel'
    """
    if value in PATHS:
        return str(value)
    nearest = difflib.get_close_matches(str(value), PATHS, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    raise InvalidInput(f"path is {value!r}; {hint}allowed: {', '.join(PATHS)}")


def check_ring(value: Any) -> int:
    """The ring's bytes. Raises InvalidInput for anything but 0 and sizes from 32 MiB to 256 MiB.

    >>> check_ring("256MiB"), check_ring(0)
    (268435456, 0)
    """
    size = parse_size(value, "ring", or_none=True)
    if size and not RING_LEAST_BYTES <= size <= RING_MOST_BYTES:
        raise InvalidInput(f"ring is {value!r}; allowed: 32 MiB to 256 MiB for both directions together, or 0 for none")
    return size


def built_in(why: str, paths: Collection[str]) -> PathTable:
    """The table for when none was measured: one H200 on PCIe 5 x16, as far as `paths` are usable."""
    cells = []
    for path, (latency_seconds, rates) in _BUILT_IN.items():
        for span_bytes, load_gb_per_s, store_gb_per_s in rates if path in paths else ():
            for store, gb_per_s in ((True, store_gb_per_s), (False, load_gb_per_s)):
                seconds = _MANY * span_bytes / gb_per_s / 1e9
                one = latency_seconds + (seconds - latency_seconds) / _MANY
                cells += [PathCell(store, span_bytes, 1, path, one), PathCell(store, span_bytes, _MANY, path, seconds)]
    return PathTable(tuple(cells), f"built in: {why}")


# path -> seconds until the first byte moves, and GB/s of 1,000 spans, load and store, by bytes of a span.
_MANY = 1000
_BUILT_IN = {
    "dma": (8e-6, ((4096, 2.2, 4.0), (16384, 4, 18), (65536, 33, 38), (524288, 52, 52), (2097152, 54.6, 54.0))),
    "kernel": (12e-6, ((4096, 42, 44), (16384, 47, 50), (65536, 50, 52), (524288, 51, 52), (2097152, 51, 52.5))),
    "staged": (30e-6, ((4096, 39, 40), (16384, 47, 49), (65536, 53, 52), (524288, 54.5, 54.7), (2097152, 54.8, 54.9))),
}


def _find(engine: PathEngine, key: str, link_gb_per_s: float, calibrate: bool) -> PathTable:
    with Folder() as folder:
        if table := _kept(folder, key, engine.paths):
            return table
        if not calibrate:
            return built_in("calibrate is off and no table is kept", engine.paths)
        with folder.alone() as alone:
            if table := _kept(folder, key, engine.paths):  # another process has measured meanwhile
                return table
            try:
                table = _measure(engine, key, link_gb_per_s)
            except (KVOffloadError, ValueError) as error:
                return built_in(str(error), engine.paths)
            if alone:  # a measurement beside another one is good enough for one process only
                folder.write(key, Kept(_today(), table.ceilings, [cell.row for cell in table.rows]))
            return table


def _kept(folder: Folder, key: str, paths: Collection[str]) -> PathTable | None:
    kept = folder.read(key)
    if kept is None:
        return None
    where = folder.path_of(key)
    try:
        return PathTable(_cells(kept.rows, paths), f"read from {where}, calibrated {kept.date}", kept.ceilings)
    except ValueError as error:
        logger.info("kvoffload: %s is ignored: %s", where, error)
        return None


def _measure(engine: PathEngine, key: str, link_gb_per_s: float) -> PathTable:
    """Raises ValueError that says why what was measured cannot be used."""
    ceilings = engine.ceiling()
    if 0 < min(ceilings) < BELIEVABLE_SHARE * link_gb_per_s:
        raise ValueError(
            f"contiguous copies came to {min(ceilings):.1f} GB/s on a link of {link_gb_per_s:.1f} GB/s; "
            "something else was using it"
        )
    rows = engine.calibrate()
    if not rows:
        raise ValueError("nothing could be measured: there is no ring, or the arena is too small")
    return PathTable(_cells(rows, engine.paths), f"calibrated {_today()} on {key.partition(',')[0]}", ceilings)


def _cells(rows: object, paths: Collection[str]) -> tuple[PathCell, ...]:
    """Raises ValueError when this is no table that covers exactly `paths`."""
    if not isinstance(rows, list):
        raise ValueError("rows are no list")
    cells = tuple(_cell(row, paths) for row in rows)
    if len({(cell.store, cell.span_bytes, cell.spans, cell.path) for cell in cells}) < len(cells):
        raise ValueError("a cell is there twice")
    covered = {(cell.store, cell.path) for cell in cells}
    for path in paths:
        for store in (True, False):
            if (store, path) not in covered:
                raise ValueError(f"{'store' if store else 'load'} by {path} is missing")
    return cells


def _cell(row: object, paths: Collection[str]) -> PathCell:
    if isinstance(row, list | tuple) and len(row) == 5:
        store, span_bytes, spans, path, seconds = row
        counts = all(type(count) is int and 0 < count < 1 << 40 for count in (span_bytes, spans))
        # No comparison with NaN is true.
        if counts and type(store) is bool and path in paths and _is_number(seconds) and 0 < seconds <= MOST_SECONDS:
            return PathCell(store, span_bytes, spans, path, float(seconds))
    raise ValueError(f"row {str(row)[:80]} is not [store, bytes of a span, spans, path, seconds]")


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _in_words(best: Sequence[PathCell]) -> str:
    """Such as: kernel to 16 KiB, staged to 512 KiB, dma above."""
    ends: list[PathCell] = []  # the last cell of each run of one path
    for cell in best:
        if ends and ends[-1].path == cell.path:
            ends.pop()
        ends.append(cell)
    words = [f"{cell.path} to {format_size(cell.span_bytes)}" for cell in ends[:-1]]
    return ", ".join([*words, f"{ends[-1].path} {'above' if words else 'at every size'}"])


def _today() -> str:
    return time.strftime("%Y-%m-%d")
