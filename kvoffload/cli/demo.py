"""`make demo`: a real trace through a KVCache on this machine's own memory, every byte verified.

python -m kvoffload.cli.demo --help
"""

from __future__ import annotations

import itertools
import sys
import time
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
console = Console(highlight=False)


def main(
    requests: Annotated[int, typer.Option(min=1, max=400, help="How many requests of the trace to play.")] = 300,
    host: Annotated[str, typer.Option(help="Size of the host tier.")] = "3GiB",
    device_blocks: Annotated[int, typer.Option(min=1, help="Blocks of the stand-in device, 2 MiB each.")] = 512,
) -> None:
    """Store and load the KV blocks of a real request trace and verify every byte."""
    trace = list(itertools.islice(conversation(), requests))
    longest = max(len(request.block_ids) for request in trace)
    if longest > device_blocks:
        raise typer.BadParameter(f"the longest of these requests needs {longest} blocks", param_hint="--device-blocks")
    try:
        totals = play(trace, host, device_blocks)
    except KVOffloadError as error:
        sys.exit(f"kvoffload: {error}")
    if totals.wrong_bytes:
        sys.exit(1)


def play(trace: list[Request], host: str, device_blocks: int) -> Totals:
    started = time.perf_counter()
    device = Device(LLAMA_3_1_8B, device_blocks)
    with KVCache(device.layout, host=host, background=False) as cache:
        describe(device, len(trace), host)
        replay = Replay(device, cache, TOKENS_PER_TRACE_BLOCK)
        columns = TextColumn("playing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=console, transient=True) as progress:
            totals = replay.play_all(progress.track(trace))
        report(totals, cache.stats(), time.perf_counter() - started)
    return totals


def describe(device: Device, requests: int, host: str) -> None:
    geometry = LLAMA_3_1_8B
    group = device.layout.groups[0]
    console.print(
        f"[bold]kvoffload demo[/bold]: the first {requests} requests of Mooncake's conversation trace, "
        f"KV geometry of Llama-3.1-8B\n"
        f"  {geometry.layers} layers x {geometry.page_bytes // 1024} KiB pages (K and V fused, bf16, "
        f"{geometry.tokens_per_block}-token blocks): {group.block_bytes / 2**20:g} MiB a block\n"
        f"  device: plain memory, {group.num_blocks} blocks ({device.pool.nbytes / GIB:.2f} GiB); "
        f"host tier: {host}\n"
        f"  scaled: each {TOKENS_PER_TRACE_BLOCK}-token block of the trace is played as one "
        f"{geometry.tokens_per_block}-token block (1/{TOKENS_PER_TRACE_BLOCK // geometry.tokens_per_block} of the "
        f"bytes), and requests run one after another",
        soft_wrap=True,
    )


def report(totals: Totals, stats: dict[str, Any], seconds: float) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(justify="right", style="bold")
    table.add_column()
    for value, what in report_rows(totals, stats):
        table.add_row(value, what)
    console.print(table)
    verdict = "[green]every byte verified[/green]" if not totals.wrong_bytes else "[red]WRONG BYTES[/red]"
    console.print(f"{verdict}, {seconds:.1f} s in all (most of it writing and checking the test data)")


def report_rows(totals: Totals, stats: dict[str, Any]) -> list[tuple[str, str]]:
    def gib(count: int) -> str:
        return f"{count / GIB:.2f} GiB"

    def speed(count: int, seconds: float) -> str:
        return f"{count / max(seconds, 1e-9) / 1e9:.1f} GB/s from the call to the last byte"

    return [
        (f"{totals.requests:,}", "requests"),
        (f"{totals.tokens:,}", f"prompt tokens, {totals.hit_tokens:,} of them hits ({totals.hit_blocks:,} blocks)"),
        (f"{totals.blocks:,}", f"blocks, {stats['evicted_keys']:,} evicted, {totals.not_read_back:,} dropped for room"),
        (gib(totals.stored_bytes), f"stored, {speed(totals.stored_bytes, totals.store_seconds)}"),
        (gib(totals.loaded_bytes), f"loaded, {speed(totals.loaded_bytes, totals.load_seconds)}"),
        (f"{totals.verified_bytes:,}", f"bytes verified, {totals.wrong_bytes:,} wrong"),
    ]


if __name__ == "__main__":
    typer.run(main)
