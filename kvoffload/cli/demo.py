"""`make demo`: a real trace through host memory and disk of this machine, a kill and a restart, every byte verified.

python -m kvoffload.cli.demo --help
"""

from __future__ import annotations

import itertools
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

from kvoffload.cache import KVCache
from kvoffload.cli.replay import LLAMA_3_1_8B, Device, Replay, Totals
from kvoffload.errors import KVOffloadError
from kvoffload.traces import TOKENS_PER_TRACE_BLOCK, Request, conversation

try:
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table
except ImportError as missing:
    sys.exit(f"the demo needs {missing.name}: pip install 'kvoffload[cli]'")

GIB = 2**30
GEOMETRY = replace(LLAMA_3_1_8B, tokens_per_block=4)  # 512 KiB, as a chunk is by default
MOST_WAIT_SECONDS = 5.0
console = Console(highlight=False)


@dataclass(frozen=True)
class Setting:
    """What both processes are given."""

    host: str
    disk: str
    disk_size: str
    device_blocks: int


@dataclass
class Life:
    """What one process came to: the requests it had reported when it ended, or was killed."""

    totals: Totals
    stats: dict[str, Any]
    known_blocks: int  # on disk when it began


def main(
    requests: Annotated[int, typer.Option(min=2, max=400, help="How many requests of the trace to play.")] = 400,
    host: Annotated[str, typer.Option(help="Size of the host tier.")] = "256MiB",
    device_blocks: Annotated[int, typer.Option(min=1, help="Blocks of the stand-in device, 512 KiB each.")] = 512,
    disk: Annotated[str | None, typer.Option(help="Directory of the disk tier; by default a temporary one.")] = None,
    disk_size: Annotated[str, typer.Option(help="How much of the disk may be taken.")] = "4GiB",
) -> None:
    """Store and load the KV blocks of a real request trace, kill the process half-way, and verify every byte."""
    trace = list(itertools.islice(conversation(), requests))
    longest = max(len(request.block_ids) for request in trace)
    if longest > device_blocks:
        raise typer.BadParameter(f"the longest of these requests needs {longest} blocks", param_hint="--device-blocks")
    with nullcontext(disk) if disk else temporary_directory() as directory:
        setting = Setting(host, directory, disk_size, device_blocks)
        lives, seconds = play(trace, setting)
    report(lives, seconds)
    if any(life.totals.wrong_bytes for life in lives):
        sys.exit(1)


def temporary_directory() -> AbstractContextManager[str]:
    on_disk = Path("/var/tmp")  # where /tmp may be memory
    return tempfile.TemporaryDirectory(prefix="kvoffload-demo-", dir=on_disk if on_disk.is_dir() else None)


def play(trace: list[Request], setting: Setting) -> tuple[list[Life], float]:
    started = time.perf_counter()
    describe(len(trace), setting)
    columns = TextColumn("playing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(trace))
        first = live(trace, setting, len(trace) // 2, lambda: progress.advance(task))
        played = first.totals.requests
        console.print(f"killed in the middle of request {played + 1}; a new process goes on from there")
        second = live(trace[played:], setting, None, lambda: progress.advance(task))
    return [first, second], time.perf_counter() - started


def live(trace: list[Request], setting: Setting, kill_after: int | None, advance: Callable[[], None]) -> Life:
    """Plays in a process of its own, which dies by SIGKILL once it has reported so many requests."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=play_and_tell, args=(trace, setting, theirs))
    process.start()
    theirs.close()
    said = None
    try:
        while True:
            said = ours.recv()
            if not isinstance(said, Life):
                sys.exit(f"kvoffload: {said}")
            advance()
            if said.totals.requests == kill_after:
                process.kill()
    except (EOFError, OSError):  # also in the middle of a message
        process.join()
    finally:
        process.kill()
        process.join()  # nothing is written any more
    if said is None or said.totals.requests < (kill_after or len(trace)):
        sys.exit(f"the process that plays ended by itself: exit code {process.exitcode}")
    return said


def play_and_tell(trace: list[Request], setting: Setting, pipe: Connection) -> None:
    """What the process does: a `Life` after each request, or why there is none."""
    device = Device(GEOMETRY, setting.device_blocks)
    try:
        with KVCache(
            device.layout, setting.host, disk=setting.disk, disk_size=setting.disk_size, write_through=True,
            background=False, worth_loading="always",
        ) as cache:  # fmt: skip
            known_blocks = cache.stats()["disk"]["ready_keys"]
            replay = Replay(device, cache, TOKENS_PER_TRACE_BLOCK)
            for request in trace:
                replay.play(request)
                pipe.send(Life(replay.totals, cache.stats(), known_blocks))
                wait_for_disk(cache)
    except KVOffloadError as error:
        pipe.send(str(error))
    finally:
        pipe.close()


def wait_for_disk(cache: KVCache) -> None:
    """Between requests there are seconds in the trace, in which what was stored is written."""
    end = time.monotonic() + MOST_WAIT_SECONDS
    while (stats := cache.stats())["mover"]["disk"]["jobs"] or stats["waiting_for_disk_keys"]:
        if time.monotonic() > end:
            return
        time.sleep(0.001)


def describe(requests: int, setting: Setting) -> None:
    geometry = GEOMETRY
    block_bytes = geometry.layers * geometry.page_bytes
    device_bytes = setting.device_blocks * block_bytes
    console.print(
        f"[bold]kvoffload demo[/bold]: the first {requests} requests of Mooncake's conversation trace, "
        f"KV geometry of Llama-3.1-8B\n"
        f"  {geometry.layers} layers x {geometry.page_bytes // 1024} KiB pages (K and V fused, bf16, "
        f"{geometry.tokens_per_block}-token blocks): {block_bytes // 1024} KiB a block\n"
        f"  device: plain memory, {setting.device_blocks} blocks ({device_bytes / GIB:.2f} GiB); "
        f"host tier: {setting.host}; disk tier: {setting.disk_size} in {Path(setting.disk).absolute()}\n"
        f"  scaled: each {TOKENS_PER_TRACE_BLOCK}-token block of the trace is played as one "
        f"{geometry.tokens_per_block}-token block (1/{TOKENS_PER_TRACE_BLOCK // geometry.tokens_per_block} of the "
        f"bytes), and requests run one after another, as soon as what was stored is on disk",
        soft_wrap=True,
    )


def report(lives: list[Life], seconds: float) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(justify="right", style="bold")
    table.add_column()
    totals = total_of(lives)
    for value, what in report_rows(totals, lives):
        table.add_row(value, what)
    console.print(table)
    verdict = "[green]every byte verified[/green]" if not totals.wrong_bytes else "[red]WRONG BYTES[/red]"
    console.print(f"{verdict}, {seconds:.1f} s in all (most of it writing and checking the test data)")


def total_of(lives: list[Life]) -> Totals:
    return Totals(*(sum(getattr(life.totals, field.name) for life in lives) for field in fields(Totals)))


def report_rows(totals: Totals, lives: list[Life]) -> list[tuple[str, str]]:
    def gib(count: int) -> str:
        return f"{count / GIB:.2f} GiB"

    def speed(count: int, seconds: float) -> str:
        return f"{count / max(seconds, 1e-9) / 1e9:.1f} GB/s from the call to the last byte"

    def counted(name: str) -> int:
        return sum(life.stats[name] for life in lives)

    written = sum(life.stats["mover"]["disk"]["demoted_bytes"] for life in lives)
    known, since = lives[1].known_blocks, lives[1].totals.disk_hit_blocks
    in_host = totals.hit_blocks - totals.disk_hit_blocks
    return [
        (f"{totals.requests:,}", "requests"),
        (f"{totals.tokens:,}", f"prompt tokens, {totals.hit_tokens:,} of them hits"),
        (f"{totals.blocks:,}", f"blocks; hits: {in_host:,} in host memory, {totals.disk_hit_blocks:,} on disk"),
        (f"{known:,}", f"blocks on disk known again after the kill; {since:,} hits on disk since"),
        (f"{counted('evicted_keys'):,}", f"blocks left host memory, {counted('disk_evicted_keys'):,} the disk"),
        (gib(totals.stored_bytes), f"stored, {speed(totals.stored_bytes, totals.store_seconds)}"),
        (gib(totals.loaded_bytes), f"loaded, {speed(totals.loaded_bytes, totals.load_seconds)}"),
        (gib(written), f"written to disk; {totals.not_read_back:,} blocks had no room in host memory"),
        (f"{totals.verified_bytes:,}", f"bytes verified, {totals.wrong_bytes:,} wrong"),
    ]


if __name__ == "__main__":
    typer.run(main)
