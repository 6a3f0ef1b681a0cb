"""`kvoffload bench disk`: how fast records go to a disk and come back, and what fio makes of the same file."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kvoffload import _C
from kvoffload.cli.console import errors_in_a_line, measuring
from kvoffload.cli.disk_report import WAYS, DiskCell, DiskReport, Pairs, as_dict, show
from kvoffload.cli.disk_rig import DiskRig, free_bytes
from kvoffload.cli.fio import Fio
from kvoffload.cli.options import check_files, number_of
from kvoffload.config import format_size, parse_size
from kvoffload.errors import InvalidInput, Unsupported
from kvoffload.free_memory import available_bytes

IO = ("io_uring", "threads")
LEAST_RECORD_BYTES, MOST_RECORD_BYTES, ALIGN_BYTES = 4096, 1 << 30, 4096
CRC_BUFFER_BYTES, CRC_BYTES, CRC_PASSES = 2 << 20, 1 << 30, 3
PAIRED_BYTES = 2 << 20  # the size of a record that fio is compared at, where it is among those measured


@dataclass(frozen=True)
class DiskOptions:
    """What was asked, read and checked."""

    directory: Path
    records: list[int]
    at_once: list[int]
    io: list[str]
    total_bytes: int
    repeats: int
    fio: bool
    network: bool


def disk(
    directory: Annotated[Path, typer.Argument(help="Where to measure; what is made there is removed again.")],
    records: Annotated[str, typer.Option(help="Sizes of a record, with commas between.")] = "512KiB,2MiB,8MiB",
    at_once: Annotated[str, typer.Option(help="How many records are in flight, with commas between.")] = "1,4,16",
    io: Annotated[str, typer.Option(help="Out of io_uring, threads.")] = ",".join(IO),
    size: Annotated[str, typer.Option(help="Bytes written and read for each figure.")] = "2GiB",
    repeats: Annotated[int, typer.Option(help="Pairs of ours and fio's.")] = 5,
    fio: Annotated[bool, typer.Option(help="Compare with fio where it is installed.")] = True,
    network: Annotated[bool, typer.Option("--network", help="Allow file systems of other machines.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
) -> None:
    """Measure how fast records are written to a disk and read back, checksums included."""
    with errors_in_a_line():
        check_files(json_file, None)
        wanted = DiskOptions(
            directory=directory,
            records=[_record_bytes(text) for text in records.split(",")],
            at_once=[number_of(_number(text, "at-once"), 1024, "at-once") for text in at_once.split(",")],
            io=[_one_of(text.strip(), IO, "io") for text in io.split(",")],
            total_bytes=parse_size(size, "size"),
            repeats=number_of(repeats, 1000, "repeats"),
            fio=fio,
            network=network,
        )
        report = run(wanted)
    show(report, Console(highlight=False))
    if json_file:
        json_file.write_text(json.dumps(as_dict(report), indent=1) + "\n")


def run(options: DiskOptions) -> DiskReport:
    """Measures all that was asked. Raises InvalidInput for what is not possible here, other KVOffloadErrors."""
    if not options.directory.is_dir():
        raise InvalidInput(f"directory is {str(options.directory)!r}; it must be one that exists")
    if (free := free_bytes(options.directory)) < options.total_bytes * 1.05:
        raise InvalidInput(f"size is {format_size(options.total_bytes)}; {options.directory} has {free:,} bytes free")
    machine = {"kernel": platform.release(), "cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    report = DiskReport(str(options.directory), machine)
    report.record_bytes = PAIRED_BYTES if PAIRED_BYTES in options.records else max(options.records)
    report.crc_gb_per_s = crc_gb_per_s()
    with measuring(len(options.records) * len(options.io) * len(options.at_once) * 2) as tick:
        for record_bytes in options.records:
            for io in options.io:
                _measure_slab(options, record_bytes, io, report, tick)
    if not report.cells:
        raise Unsupported(f"nothing could be measured: {'; '.join(report.notes)}")
    if options.fio:
        try:
            _compare(options, report)
        except Unsupported as error:
            report.notes.append(f"not compared: {error}")
    return report


def crc_gb_per_s() -> float:
    """CRC-32C of buffers of 2 MiB that do not lie in a cache, on one core."""
    total = min(CRC_BYTES, available_bytes() // 4) // CRC_BUFFER_BYTES * CRC_BUFFER_BYTES or CRC_BUFFER_BYTES
    buffers = [bytes([i % 256]) * CRC_BUFFER_BYTES for i in range(total // CRC_BUFFER_BYTES)]
    seconds = []
    for _ in range(CRC_PASSES):
        began = time.perf_counter()
        for buffer in buffers:
            _C.crc32c(buffer)
        seconds.append(time.perf_counter() - began)
    return total / statistics.median(seconds) / 1e9


def _measure_slab(
    options: DiskOptions, record_bytes: int, io: str, report: DiskReport, tick: Callable[[], None]
) -> None:
    """Every number of records at once, writing and reading, on one slab that was written once before."""
    try:
        with _rig(options, record_bytes, io) as rig:
            rig.run(True, rig.most_at_once)
            for at_once in options.at_once:
                for way in ("write", "read"):
                    report.cells.append(DiskCell(io, record_bytes, way, at_once, rig.run(way == "write", at_once)))
                    tick()
            report.slabs.append({"record_bytes": record_bytes, **rig.report})
            note = rig.report["slab_note"]
    except Unsupported as error:
        report.notes.append(f"{io} is not measured: {error}")
        return
    if note and note not in report.notes:
        report.notes.append(str(note))


def _compare(options: DiskOptions, report: DiskReport) -> None:
    """Ours at its best and fio at its best, taking turns on one file: all writes first, since fio leaves no records."""
    for way in ("write", "read"):
        best = report.best(way, report.record_bytes)
        with _rig(options, report.record_bytes, best.io) as rig:
            rig.run(True, rig.most_at_once)
            fio = Fio(rig.path, rig.total_bytes, direct=bool(rig.report["direct"]))
            write = way == "write"
            job = fio.best(write, report.record_bytes)
            pairs = [(rig.run(write, best.at_once), fio.run(job, write)) for _ in range(options.repeats)]
        ours, theirs = zip(*pairs, strict=True)
        report.pairs.append(Pairs(way, best.io, best.at_once, job, ours, theirs))
    report.pairs.sort(key=lambda pairs: WAYS.index(pairs.way))


def _rig(options: DiskOptions, record_bytes: int, io: str) -> DiskRig:
    count = max(options.total_bytes // record_bytes, 1)
    return DiskRig(options.directory, record_bytes, count, max(options.at_once), io, network=options.network)


def _record_bytes(text: str) -> int:
    size = parse_size(text, "records")
    if size % ALIGN_BYTES or not LEAST_RECORD_BYTES <= size <= MOST_RECORD_BYTES:
        raise InvalidInput(f"records holds {text!r}; a record is a multiple of 4 KiB, at most 1 GiB")
    return size


def _number(text: str, option: str) -> int:
    if not text.strip().isdecimal():
        raise InvalidInput(f"{option} holds {text!r}; give whole numbers with commas between")
    return int(text)


def _one_of(value: str, allowed: tuple[str, ...], option: str) -> str:
    if value not in allowed:
        raise InvalidInput(f"{option} holds {value!r}; allowed: {', '.join(allowed)}")
    return value
