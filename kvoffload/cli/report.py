"""The result of `bench transfer`: what it holds, as JSON and as tables."""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kvoffload import _C
from kvoffload.cli.interference import Interference
from kvoffload.cli.measure import Ceilings, Cell, Pool, Spread
from kvoffload.config import format_size
from kvoffload.paths import PathTable

TITLES = {
    "h2d": "load: host to device (h2d)",
    "d2h": "store: device to host (d2h)",
    "both": "both at once, sum of the two",
}


@dataclass(frozen=True)
class Disturbance:
    """Interference of one path: page_bytes of its transfers, ceiling_gb_per_s of the machine in that direction."""

    direction: str
    path: str
    page_bytes: int
    ceiling_gb_per_s: float
    found: Interference


@dataclass
class Report:
    """All that a run found, filled in as it goes. notes: what was left out or reduced, and why."""

    device: str
    machine: dict[str, Any]
    repeats: int
    mix: str
    ceilings: Ceilings
    arena_bytes: int = 0
    ring_bytes: int = 0
    path_table: PathTable | None = None
    pool: Pool | None = None
    notes: list[str] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    disturbances: list[Disturbance] = field(default_factory=list)


def describe_machine(device: _C.Device) -> dict[str, Any]:
    """What must be known to judge the figures."""
    versions = {"python": platform.python_version()}
    for name in ("kvoffload", "numpy", "torch"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "device": device.identity(),
        "link_gb_per_s": device.link_gb_per_s(),
        "numa_node": device.numa_node,
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": versions,
    }


def as_dict(report: Report) -> dict[str, Any]:
    """The report as plain values for JSON; seconds, bytes and GB/s (10^9 bytes) as the keys' ends say."""
    table = report.path_table
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": report.device,
        "machine": report.machine,
        "repeats": report.repeats,
        "mix": report.mix,
        "notes": report.notes,
        "arena_bytes": report.arena_bytes,
        "ring_bytes": report.ring_bytes,
        "ceilings": dataclasses.asdict(report.ceilings),
        "path_table": None if table is None else dataclasses.asdict(table),
        "pool": None
        if report.pool is None
        else {**dataclasses.asdict(report.pool), "gib_per_s": report.pool.gib_per_s},
        "cells": [_cell(cell) for cell in report.cells],
        "interference": [_disturbance(one) for one in report.disturbances],
    }


def _cell(cell: Cell) -> dict[str, Any]:
    row = cell.row
    return {
        "name": row.shape.name,
        "page_bytes": row.shape.page_bytes,
        "tensors": row.shape.tensors,
        "blocks": row.blocks,
        "blocks_asked": row.asked,
        "blocks_per_slot": row.blocks_per_chunk,
        "direction": cell.direction,
        "path": cell.path,
        "load_bytes": cell.load_bytes,
        "store_bytes": cell.store_bytes,
        "gb_per_s": cell.gb_per_s,
        "ceiling_gb_per_s": cell.ceiling_gb_per_s,
        "ceiling_ratio": cell.ceiling_ratio,
        "device_gb_per_s": cell.device_gb_per_s,
        "seconds": _spread(cell.seconds),
        "device_seconds": None if cell.device_seconds is None else _spread(cell.device_seconds),
        "taken": cell.taken,
        "reason": cell.reason,
        "verified_bytes": cell.verified_bytes,
    }


def _disturbance(one: Disturbance) -> dict[str, Any]:
    found = one.found
    return {
        "neighbour": found.neighbour,
        "direction": one.direction,
        "path": one.path,
        "page_bytes": one.page_bytes,
        "slowdown_pct": _spread(found.slowdown_pct),
        "gb_per_s": _spread(found.gb_per_s),
        "alone_gb_per_s": found.alone_gb_per_s,
        "ceiling_gb_per_s": one.ceiling_gb_per_s,
        "ceiling_ratio": found.gb_per_s.median / one.ceiling_gb_per_s,
        "steps": found.steps,
    }


def _spread(spread: Spread) -> dict[str, Any]:
    return {"median": spread.median, "min": spread.least, "max": spread.most, "samples": list(spread.samples)}


def show_head(report: Report, console: Console) -> None:
    """Machine, ceilings, path table and notes."""
    machine, top, say = report.machine, report.ceilings, partial(console.print, soft_wrap=True)
    say(f"[bold]kvoffload bench transfer[/bold] on {machine['device']}, {machine['cores']} cores")
    say(
        f"ceiling, contiguous copies of {format_size(top.bytes)}: h2d {top.h2d:.1f} GB/s, d2h {top.d2h:.1f} GB/s, "
        f"at once {top.both_h2d:.1f} + {top.both_d2h:.1f} GB/s"
    )
    if report.pool:
        pool = report.pool
        say(
            f"pool: {format_size(pool.bytes)} {'pinned' if pool.pinned else 'filled'} at {pool.gib_per_s:.1f} GiB/s, "
            f"the first part usable after {pool.first_ready_seconds:.2f} s (huge pages: {pool.huge_pages})"
        )
    say(f"host arena {format_size(report.arena_bytes)}, ring {format_size(report.ring_bytes)}")
    if report.path_table is not None:
        say(report.path_table.text(), markup=False)
    for note in report.notes:
        say(f"note: {note}", markup=False)


def transfer_table(report: Report, direction: str) -> Table:
    """One row for each block size, one column for each path; the best in bold."""
    cells = [cell for cell in report.cells if cell.direction == direction]
    paths = list(dict.fromkeys(cell.path for cell in cells))
    mixed = f", load:store {report.mix}" if direction == "both" and report.mix != "1:1" else ""
    table = Table(title=TITLES[direction] + mixed, title_justify="left")
    table.add_column("blocks")
    for path in paths:
        table.add_column(path, justify="right")
    for row in dict.fromkeys(cell.row for cell in cells):
        across = [cell for cell in cells if cell.row == row]
        best = max(cell.gb_per_s for cell in across)
        pages = (
            f"\n[dim]{row.shape.tensors} x {format_size(row.shape.page_bytes)}[/dim]" if row.shape.tensors > 1 else ""
        )
        name = f"{row.blocks:,} x {row.shape.name}{pages}"
        table.add_row(name, *(_cell_text(cell, cell.gb_per_s == best) for cell in across))
    return table


def _cell_text(cell: Cell, best: bool) -> str:
    speed = f"{cell.gb_per_s:.1f}"
    lines = [f"{f'[bold]{speed}[/bold]' if best else speed} {100 * cell.ceiling_ratio:3.0f}%"]
    if (device := cell.device_gb_per_s) is not None:
        lines.append(f"[dim]device {device:.1f}[/dim]")
    if cell.path == "auto":
        lines.append(f"[dim]{cell.taken}[/dim]")
    return "\n".join(lines)


def interference_table(disturbances: Sequence[Disturbance]) -> Table:
    """Slowdown of each neighbour, and the path's speed meanwhile."""
    table = Table(title="beside a model", title_justify="left")
    for name in ("neighbour", "way", "path", "pages"):
        table.add_column(name)
    for name in ("slower by", "GB/s meanwhile", "of ceiling", "GB/s alone"):
        table.add_column(name, justify="right")
    for one in disturbances:
        speed = one.found.gb_per_s.median
        figures = f"{one.found.slowdown_pct.median:+.1f}%", f"{speed:.1f}", f"{100 * speed / one.ceiling_gb_per_s:.0f}%"
        where = one.found.neighbour, one.direction, one.path, format_size(one.page_bytes)
        table.add_row(*where, *figures, f"{one.found.alone_gb_per_s:.1f}")
    return table


def show(report: Report, console: Console) -> None:
    """Everything, for people."""
    show_head(report, console)
    for direction in dict.fromkeys(cell.direction for cell in report.cells):
        console.print(transfer_table(report, direction))
    verified = sum(cell.verified_bytes for cell in report.cells if cell.direction != "both")
    console.print(
        f"GB/s (10^9 bytes) from the call until the last byte is seen, median of {report.repeats}, and percent of the "
        "ceiling; device: on the device alone, held back until all was enqueued; under auto: the path it took. "
        f"{verified:,} bytes verified, none wrong.",
        soft_wrap=True,
    )
    if report.disturbances:
        console.print(interference_table(report.disturbances))
