"""`kvoffload bench transfer`: options, then what is measured, then tables, JSON and a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kvoffload.cli.console import errors_in_a_line, measuring
from kvoffload.cli.device_memory import Target
from kvoffload.cli.interference import PAIRS, interfere
from kvoffload.cli.measure import measure_ceilings, measure_pool, measure_row, steps_of
from kvoffload.cli.models import Shape, model_shape, size_shape
from kvoffload.cli.neighbours import NEIGHBOURS, load_torch
from kvoffload.cli.options import PATHS, Options, check_files, directions_of, mix_of, number_of, paths_of, shapes_of
from kvoffload.cli.plot import save_plot
from kvoffload.cli.report import Disturbance, Report, as_dict, describe_machine, show
from kvoffload.cli.rig import DIRECTIONS, RAW_PATHS, Rig
from kvoffload.cli.sizing import LEAST_CUDA_ARENA_BYTES, Row, fit, make_row
from kvoffload.config import format_size, parse_size
from kvoffload.errors import InvalidInput, KVOffloadError, Unsupported
from kvoffload.free_memory import available_bytes

SIZES = "4KiB,16KiB,64KiB,256KiB,512KiB,2MiB,16MiB"
UNBOUNDED_BYTES = 1 << 62
TRAFFIC_BYTES = 128 << 20  # of one transfer beside a neighbour: some milliseconds, small beside a window
TRAFFIC_SHAPE, LARGE_SHAPE = Shape("16 KiB", 16 << 10), Shape("2 MiB", 2 << 20)


def transfer(
    sizes: Annotated[str, typer.Option(help="Block sizes, with commas between.")] = SIZES,
    count: Annotated[int, typer.Option(help="Blocks moved at once; fewer where memory is short.")] = 1000,
    paths: Annotated[str, typer.Option(help=f"Out of {', '.join(PATHS)}. Default: all that work here.")] = "",
    direction: Annotated[str, typer.Option(help="h2d (load), d2h (store), both (at once) or all.")] = "all",
    repeats: Annotated[int, typer.Option(help="Runs; the median counts.")] = 9,
    model: Annotated[str, typer.Option(help="Models in place of sizes: llama-3.1-8b, llama-3.1-70b:tp8:fp8, ...")] = "",
    mix: Annotated[str, typer.Option(help="Loads to stores where both run at once.")] = "1:1",
    interference: Annotated[
        bool, typer.Option("--interference", help="Slowdown of work beside it (needs torch).")
    ] = False,
    pool: Annotated[bool, typer.Option("--pool", help="How fast host memory becomes usable, too.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture to this file (.png, .svg, .pdf).")] = None,
    host_memory: Annotated[str, typer.Option(help="Most host memory to take. Default: half of what is free.")] = "",
    device: Annotated[str, typer.Option(help="cuda:N, or host: plain memory stands in for a GPU.")] = "",
) -> None:
    """Measure how fast KV blocks move between device and host, by path and block size."""
    with errors_in_a_line():
        options = Options(
            shapes=shapes_of(model, model_shape, "model") if model else shapes_of(sizes, size_shape, "sizes"),
            models=bool(model),
            count=number_of(count, 1_000_000, "count"),
            paths=paths_of(paths) if paths else None,
            directions=directions_of(direction),
            repeats=number_of(repeats, 10_000, "repeats"),
            mix=mix_of(mix),
            interference=interference,
            pool=pool,
            host_bytes=parse_size(host_memory, "host-memory") if host_memory else None,
            device=device or None,
        )
        check_files(json_file, plot)
        report = run(options)
    show(report, Console(highlight=False))
    if json_file:
        json_file.write_text(json.dumps(as_dict(report), indent=1) + "\n")
    if plot:
        save_plot(report, plot)


def run(options: Options) -> Report:
    """Measures all that was asked. Raises InvalidInput for what is not possible here, other KVOffloadErrors."""
    target, note = _choose_target(options.device)
    host_bytes = options.host_bytes or available_bytes() // (4 if target.is_host else 2)
    ceilings = measure_ceilings(target, host_bytes)
    report = Report(
        target.name, describe_machine(target.device), options.repeats, "{}:{}".format(*options.mix), ceilings
    )
    report.notes += [note] if note else []
    traffic = _traffic_rows(options, target, report)
    if options.pool:
        report.pool = measure_pool(target.device, host_bytes)
    with _rig(options, target, host_bytes, traffic, report) as rig:
        measured = len(rig.rows) - len(traffic)
        paths = _usable_paths(options.paths, rig, report)
        own = [path for path in paths if path not in RAW_PATHS]
        steps = measured * steps_of(options.directions, paths, options.repeats)
        plan = _traffic_plan(rig, measured, own, options.directions) if traffic else []
        with measuring(steps + len(plan) * len(NEIGHBOURS) * PAIRS) as tick:
            for index in range(measured):
                report.cells += measure_row(rig, index, options.directions, paths, options.repeats, ceilings, tick)
            report.disturbances += _disturb(rig, plan, report, tick)
    return report


@contextmanager
def _rig(options: Options, target: Target, host_bytes: int, traffic: Sequence[Row], report: Report) -> Iterator[Rig]:
    """Rows that fit into memory, the memory, and a mover; says what was reduced."""
    rows = [*(make_row(shape, options.count) for shape in options.shapes), *traffic]
    least_arena = 0 if target.is_host else min(LEAST_CUDA_ARENA_BYTES, host_bytes)
    wanted, _ = fit(rows, host_bytes, host_bytes if target.is_host else UNBOUNDED_BYTES, least_arena)
    needed = 2 * max(row.bytes for row in wanted)
    least = 2 * max(row.blocks_per_chunk * row.shape.block_bytes for row in rows)
    memory, device_bytes = target.allocate(needed, least)
    rows, arena_bytes = fit(rows, host_bytes, device_bytes, least_arena)
    for row in rows[: len(options.shapes)]:
        if row.blocks < row.asked:
            report.notes.append(
                f"{row.shape.name}: {row.blocks:,} blocks, not {row.asked:,}: memory is short "
                f"({format_size(arena_bytes)} of host, {format_size(device_bytes)} of device memory; see --host-memory)"
            )
    loads, stores = options.mix
    most = max(options.mix)
    with Rig(target, memory, rows, arena_bytes, load_share=loads / most, store_share=stores / most) as rig:
        report.arena_bytes, report.ring_bytes = arena_bytes, rig.ring_bytes
        report.path_table = rig.mover.path_table
        yield rig


def _traffic_rows(options: Options, target: Target, report: Report) -> list[Row]:
    """Rows that only run beside neighbours: small pages, and 2 MiB pages to compare with."""
    if not options.interference:
        return []
    try:
        if target.is_host:
            raise Unsupported("there is no GPU to share")
        load_torch()
    except Unsupported as error:
        report.notes.append(f"--interference is not run: {error}")
        return []
    shapes = options.shapes[0] if options.models else TRAFFIC_SHAPE, LARGE_SHAPE
    return [make_row(shape, -(-TRAFFIC_BYTES // shape.block_bytes)) for shape in shapes]


def _traffic_plan(rig: Rig, first: int, paths: list[str], directions: list[str]) -> list[tuple[int, str, str]]:
    """(row, direction, path) of all that runs beside each neighbour; the large copies by dma come first."""
    ways = [direction for direction in directions if direction != "both"] or ["h2d", "d2h"]
    large = [(first + 1, way, "dma") for way in ways if "dma" in rig.paths]
    return large + [(first, way, path) for way in ways for path in paths]


def _disturb(
    rig: Rig, plan: Sequence[tuple[int, str, str]], report: Report, tick: Callable[[], None]
) -> Iterator[Disturbance]:
    for index in sorted({index for index, _, _ in plan}):
        rig.prepare(index)
    for make in NEIGHBOURS if plan else ():
        try:
            neighbour = make(rig.target.ordinal)
        except RuntimeError as error:  # torch's, such as too little memory: keep what was measured before
            report.notes.append(f"{make.__name__} is not run: {error}")
            continue
        for index, way, path in plan:
            (store,) = DIRECTIONS[way]
            found = interfere(neighbour, partial(rig.submit, index, store, path), tick=tick)
            ceiling = report.ceilings.d2h if store else report.ceilings.h2d
            yield Disturbance(way, path, rig.rows[index].shape.page_bytes, ceiling, found)


def _choose_target(asked: str | None) -> tuple[Target, str]:
    """The device asked for, else the first GPU, else the host; and a note."""
    stands_in = "plain memory stands in for a GPU; these figures say nothing of a link"
    if asked:
        target = Target(asked)
        return target, stands_in if target.is_host else ""
    try:
        return Target("cuda:0"), ""
    except KVOffloadError as error:
        return Target("host"), f"no GPU here ({error}): {stands_in}"


def _usable_paths(asked: list[str] | None, rig: Rig, report: Report) -> list[str]:
    usable = rig.paths
    if asked is None:
        if rig.target.is_host:
            return ["auto", "memcpy-loop"]
        if missing := [path for path in PATHS if path not in usable]:
            report.notes.append(f"not usable here, so not measured: {', '.join(missing)}")
        return [path for path in PATHS if path in usable]
    for path in asked:
        if path not in usable:
            raise InvalidInput(f"paths: {path!r} is not usable on {rig.target.name}; usable here: {', '.join(usable)}")
    return asked
