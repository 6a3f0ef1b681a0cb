"""What `bench disk` found: as figures, as JSON, as tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from kvoffload.cli.disk_rig import DiskRun
from kvoffload.cli.fio import FioJob, FioRun
from kvoffload.config import format_size

WAYS = ("read", "write")


@dataclass(frozen=True)
class DiskCell:
    """One figure of ours: way is read or write, `at_once` records were in flight."""

    io: str
    record_bytes: int
    way: str
    at_once: int
    run: DiskRun


@dataclass(frozen=True)
class Pairs:
    """Ours and fio's, taking turns on the same file."""

    way: str
    io: str
    at_once: int
    job: FioJob
    ours: tuple[DiskRun, ...]
    fio: tuple[FioRun, ...]

    @property
    def ratio(self) -> float:
        """Median of what each pair says."""
        return statistics.median(a.gb_per_s / b.gb_per_s for a, b in zip(self.ours, self.fio, strict=True))


@dataclass
class DiskReport:
    """All that a run found, filled in as it goes. record_bytes: of the pairs, and of `figures`."""

    directory: str
    machine: dict[str, Any]
    record_bytes: int = 0
    crc_gb_per_s: float = 0.0
    slabs: list[dict[str, Any]] = field(default_factory=list)  # how the tier used the disk, one for each slab
    notes: list[str] = field(default_factory=list)
    cells: list[DiskCell] = field(default_factory=list)
    pairs: list[Pairs] = field(default_factory=list)

    def best(self, way: str, record_bytes: int) -> DiskCell:
        """The fastest of one way and size."""
        cells = [cell for cell in self.cells if cell.way == way and cell.record_bytes == record_bytes]
        return max(cells, key=lambda cell: cell.run.gb_per_s)

    def figures(self) -> dict[str, float]:
        """What others compare with; without fio there are no ratios."""
        found = {"crc.gb_per_s": self.crc_gb_per_s}
        for way in WAYS:
            best = self.best(way, self.record_bytes).run
            found[f"disk.{way}.gb_per_s"] = best.gb_per_s
            found[f"disk.cpu_s_per_gb.{way}"] = best.cpu_s_per_gb
        for pairs in self.pairs:
            way = pairs.way
            found[f"disk.{way}.ratio_to_fio"] = pairs.ratio
            found[f"disk.{way}.gb_per_s"] = statistics.median(run.gb_per_s for run in pairs.ours)
            found[f"disk.{way}.fio_gb_per_s"] = statistics.median(run.gb_per_s for run in pairs.fio)
            found[f"disk.cpu_s_per_gb.{way}"] = statistics.median(run.cpu_s_per_gb for run in pairs.ours)
            found[f"disk.cpu_s_per_gb.fio_{way}"] = statistics.median(run.cpu_s_per_gb for run in pairs.fio)
        return found


def as_dict(report: DiskReport) -> dict[str, Any]:
    """Plain values for JSON; seconds, bytes and GB/s (10^9 bytes) as the keys' ends say."""
    return {
        "directory": report.directory,
        "machine": report.machine,
        "notes": report.notes,
        "figures": report.figures(),
        "slabs": report.slabs,
        "cells": [
            {
                "io": cell.io,
                "record_bytes": cell.record_bytes,
                "way": cell.way,
                "at_once": cell.at_once,
                **_run(cell.run),
            }
            for cell in report.cells
        ],
        "pairs": [
            {
                "way": pairs.way,
                "io": pairs.io,
                "at_once": pairs.at_once,
                "fio_job": asdict(pairs.job),
                "ratio": pairs.ratio,
                "ours": [_run(run) for run in pairs.ours],
                "fio": [asdict(run) for run in pairs.fio],
            }
            for pairs in report.pairs
        ],
    }


def _run(run: DiskRun) -> dict[str, float]:
    return {
        "bytes": run.bytes,
        "seconds": run.seconds,
        "gb_per_s": run.gb_per_s,
        "cpu_s_per_gb": run.cpu_s_per_gb,
        "p50_seconds": run.percentile(50),
        "p99_seconds": run.percentile(99),
    }


def show(report: DiskReport, console: Console) -> None:
    """Everything, for people."""
    console.print(f"[bold]kvoffload bench disk[/bold] in {report.directory}, {report.machine['cores']} cores")
    for note in report.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    for way in WAYS:
        console.print(_table(way, [cell for cell in report.cells if cell.way == way]))
    console.print(
        "GB/s (10^9 bytes), checksums included; p50 and p99 of a record from its submission on; CPU seconds of this "
        "process for 10^9 bytes.",
        soft_wrap=True,
    )
    for pairs in report.pairs:
        console.print(
            f"{pairs.way}, {format_size(report.record_bytes)} records, {pairs.io}, {pairs.at_once} at once: "
            f"[bold]{pairs.ratio:.3f}[/bold] of fio's best ({pairs.job}), median of {len(pairs.ours)} pairs",
            soft_wrap=True,
        )
    for key, value in report.figures().items():
        console.print(f"{key:32} {value:>12,.4g}", highlight=False)


def _table(way: str, cells: Sequence[DiskCell]) -> Table:
    table = Table(title=way, title_justify="left")
    for name in ("records", "io", "at once", "GB/s", "p50 ms", "p99 ms", "CPU s/GB"):
        table.add_column(name, justify="left" if name in ("records", "io") else "right")
    for cell in cells:
        run = cell.run
        table.add_row(
            format_size(cell.record_bytes), cell.io, str(cell.at_once), f"{run.gb_per_s:.2f}",
            f"{run.percentile(50) * 1e3:.2f}", f"{run.percentile(99) * 1e3:.2f}", f"{run.cpu_s_per_gb:.3f}",
        )  # fmt: skip
    return table
